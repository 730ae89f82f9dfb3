// A server's kind of C++: orders are parsed into maps of strings, priced through virtual calls, sorted and thrown away.
// Built as Debian builds its packages: -O2, no frame pointers.
//
// usage: orders ORDERS
// prints: nanoseconds for one order
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Item {
    std::string name;
    std::map<std::string, std::string> notes;
    virtual ~Item() = default;
    virtual double price(int amount) const = 0;
};

struct Book : Item {
    double price(int amount) const override {
        std::vector<double> steps(amount % 7 + 1, 9.5);
        double sum = 0;
        for (double step : steps) sum += step;
        return sum;
    }
};

struct Print : Item {
    double price(int amount) const override {
        std::string label = name + " on a paper of its own, number " + std::to_string(amount);
        return label.size() * 0.5;
    }
};

struct Order {
    std::vector<std::unique_ptr<Item>> items;
    std::map<std::string, double> prices;
};

std::vector<std::string> words(const std::string &text) {
    std::vector<std::string> list;
    std::istringstream stream(text);
    for (std::string word; stream >> word;) list.push_back(word);
    return list;
}

__attribute__((noinline)) std::unique_ptr<Item> item(const std::string &word, unsigned number) {
    std::unique_ptr<Item> made;
    if (number % 2) made = std::make_unique<Book>();
    else made = std::make_unique<Print>();
    made->name = word;
    made->notes["a note that is too long for the string itself"] = word + word + word;
    return made;
}

__attribute__((noinline)) Order parse(const std::string &text, unsigned number) {
    Order order;
    for (const std::string &word : words(text)) order.items.push_back(item(word, number++));
    return order;
}

__attribute__((noinline)) double priced(Order &order) {
    for (const auto &item : order.items) order.prices[item->name + ", by the piece"] += item->price(item->name.size());
    std::vector<std::pair<double, std::string>> sorted;
    for (const auto &[name, price] : order.prices) sorted.emplace_back(price, name);
    std::sort(sorted.begin(), sorted.end());
    return sorted.empty() ? 0 : sorted.back().first;
}

double handle(unsigned number) {
    std::string text = "novels-of-the-last-century maps-of-the-northern-sea atlas-" + std::to_string(number % 97);
    Order order = parse(text, number);
    return priced(order);
}

}  // namespace

int main(int count, char **arguments) {
    if (count != 2) return 2;
    unsigned orders = std::atol(arguments[1]);
    double sum = 0;
    auto begin = std::chrono::steady_clock::now();
    for (unsigned number = 0; number < orders; number++) sum += handle(number);
    std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    std::printf("%.1f\n", took.count() / orders);
    return sum > 0 ? 0 : 1;
}
