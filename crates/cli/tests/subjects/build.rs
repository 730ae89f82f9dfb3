//! A C++ file compiled by g++, whose work is done by its children cc1plus, as and ld.

use crate::launcher::{Evidence, Launcher, compare, evidence};
use std::fs;
use std::path::Path;

/// Templates and the large headers: about a second of cc1plus.
fn source() -> String {
    let mut text = String::from(
        "#include <map>\n#include <string>\n#include <vector>\n#include <algorithm>\n#include <iostream>\n",
    );
    for i in 0..40 {
        text += &format!(
            "struct T{i} {{ std::map<std::string, std::vector<int>> m; int f(int x) {{ auto &v = m[std::to_string(x)]; \
             v.push_back(x * {i}); std::sort(v.begin(), v.end(), [](int a, int b) {{ return a % {0} < b % {0}; }}); return v.front(); }} }};\n",
            i + 2
        );
    }
    text += "int main() { long sum = 0;\n";
    for i in 0..40 {
        text += &format!("  {{ T{i} t; for (int x = 0; x < 100; x++) sum += t.f(x % 17); }}\n");
    }
    text + "  std::cout << sum << std::endl; return sum % 7; }\n"
}

#[test]
fn gcc_compiles_cpp() {
    let subject = |launcher: &Launcher, folder: &Path| {
        fs::write(folder.join("big.cpp"), source()).expect("scratch can be written");
        // Relative names, so that the object files don't contain the folder's path.
        let gxx = |arguments: &[&str]| evidence(launcher.command("g++").args(arguments).current_dir(folder));
        let object = gxx(&["-O1", "-c", "big.cpp", "-o", "big.o"]);
        let link = gxx(&["big.o", "-o", "big"]);
        let run = evidence(&mut launcher.command(folder.join("big")));
        let mut output = object.output;
        output.extend(link.output);
        output.extend(run.output);
        let object_file = fs::read(folder.join("big.o")).expect("an object file");
        output.extend(format!("{} bytes, sum {:x}\n", object_file.len(), fnv(&object_file)).into_bytes());
        Evidence { output, status: run.status, wall: object.wall + link.wall + run.wall }
    };
    let books = compare("gcc", None, "off", subject);
    let compiler = books.iter().find(|b| b.command.contains("cc1plus")).expect("cc1plus was followed");
    let blocks = compiler.total.get("cumulative_count");
    assert!(blocks > 10_000, "cc1plus allocated {blocks} blocks");
}

/// FNV-1a: shows a difference in any byte. The files themselves would be too long to print.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
