//! Draws curves of a recording as a self-contained SVG: axes in MiB and clock time (UTC). A reading is valid until the
//! next one.

use std::io::{self, Write};

use plimsoll_facts::units::Bytes;
use plimsoll_observer::recording::{History, Measure, Series};

use crate::recording::{head, period, signed};
use crate::words::{count, cut, duration, moment, moment_text};

/// The charts by name: the values of `--chart`, listed in its help and in docs/cli.md.
macro_rules! charts {
    ($($variant:ident $name:literal $help:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Chart { $($variant),* }
        impl Chart {
            pub const ALL: &'static [Chart] = &[$(Chart::$variant),*];
            pub const fn name(self) -> &'static str {
                match self { $(Chart::$variant => $name),* }
            }
            pub const fn help(self) -> &'static str {
                match self { $(Chart::$variant => $help),* }
            }
        }
    };
}

charts! {
    RssGap "rss-gap" "RSS beside the committed Java heap, the gap between them shaded"
    Categories "categories" "Committed memory by category, stacked, and RSS over it"
    Lines "lines" "Resident memory by line of the ledger, stacked: together they are RSS (recordings of plimsoll record)"
    Growth "growth" "Growth an hour of each category and line, with its 95 % interval"
}

const WIDTH: f64 = 1040.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 250.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 52.0;
/// Columns into which readings are gathered; a screen cannot resolve more.
const COLUMNS: usize = 600;
/// Curves of a stacked chart; the others are one curve.
const LAYERS: usize = 8;
const MIB: f64 = 1048576.0;

/// The colours of Okabe and Ito, which colour-blind people can distinguish. Black is reserved for RSS.
const COLOURS: [&str; 9] =
    ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C6BB1", "#BBBBBB"];
const RSS: &str = "#111111";

/// Draws the chart. The inner error is a sentence: what the recording lacks for it.
pub fn write(out: &mut dyn Write, history: &History, chart: Chart) -> io::Result<Result<(), String>> {
    let drawn = match chart {
        Chart::RssGap => rss_gap(history),
        Chart::Categories => stacked(history, Measure::Committed, "committed by category"),
        Chart::Lines => stacked(history, Measure::Line, "resident by line"),
        Chart::Growth => growth(history),
    };
    match drawn {
        Ok(svg) => out.write_all(svg.as_bytes()).map(Ok),
        Err(lack) => Ok(Err(lack)),
    }
}

/// The first chart for which the recording has the curves; `Categories` if it has none of them.
pub fn default_chart(history: &History) -> Chart {
    match (history.rss(), history.java_heap()) {
        (Some(_), Some(_)) => Chart::RssGap,
        _ if history.of(Measure::Line).next().is_some() => Chart::Lines,
        _ => Chart::Categories,
    }
}

/// Escapes the text of a recording for XML and drops characters that XML 1.0 does not have.
fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in crate::words::printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// The reading that is valid in each column; None before the first reading and after the last, whose time is `last_ns`.
fn columns(history: &History, series: &Series, last_ns: i64) -> Vec<Option<f64>> {
    let width = history.to_ns.saturating_sub(history.from_ns).max(1) as f64;
    let column_of = |ns: i64| {
        let column = ns.saturating_sub(history.from_ns) as f64 / width * (COLUMNS - 1) as f64;
        column.round().clamp(0.0, (COLUMNS - 1) as f64) as usize
    };
    let mut columns = vec![None; COLUMNS];
    for point in series.points() {
        columns[column_of(point.end_ns)] = Some(if point.count == 1 { point.last as f64 } else { point.mean() });
    }
    let mut before = None;
    for column in &mut columns[..=column_of(last_ns)] {
        before = column.or(before);
        *column = before;
    }
    columns
}

/// The columns of a curve that ends with its own last reading.
fn alone(history: &History, series: &Series) -> Vec<Option<f64>> {
    columns(history, series, last_of(history, series))
}

fn last_of(history: &History, series: &Series) -> i64 {
    series.points().last().map_or(history.from_ns, |point| point.end_ns)
}

/// The only column with a value, and the value.
fn only(values: &[Option<f64>]) -> Option<(usize, f64)> {
    let mut there = values.iter().enumerate().filter_map(|(column, value)| Some((column, (*value)?)));
    there.next().filter(|_| there.next().is_none())
}

struct Plot {
    svg: String,
    from: i64,
    to: i64,
    top: f64,
    legend: f64,
}

fn x(column: usize) -> f64 {
    LEFT + (WIDTH - LEFT - RIGHT) * column as f64 / (COLUMNS - 1) as f64
}

impl Plot {
    fn new(history: &History, title: &str, highest: f64) -> Plot {
        let mut plot = Plot {
            svg: frame(history, title, HEIGHT),
            from: history.from_ns,
            to: history.to_ns,
            top: 1.0,
            legend: TOP + 6.0,
        };
        plot.scale(highest);
        plot.clock();
        plot
    }

    fn y(&self, value: f64) -> f64 {
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - value / self.top)
    }

    /// Axis marks: 1, 2 or 5 times a power of ten MiB, at most six, from zero on.
    fn scale(&mut self, highest: f64) {
        let rough = (highest / MIB).max(0.001) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|n| n * power).find(|step| *step >= rough).unwrap_or(power);
        let lines = ((highest / MIB) / step).ceil().max(1.0) as usize;
        self.top = lines as f64 * step * MIB;
        for line in 0..=lines {
            let value = line as f64 * step;
            let y = self.y(value * MIB);
            let label = if step >= 1.0 { count(value.round() as u64) } else { format!("{value:.3}") };
            let label = if step >= 1.0 { label } else { label.trim_end_matches('0').trim_end_matches('.').to_string() };
            self.svg += &format!(
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>\n",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.0
            );
        }
        self.svg += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">MiB</text>\n",
            LEFT - 8.0,
            TOP - 12.0
        );
    }

    /// Clock times to mark: round moments, at most nine.
    fn clock(&mut self) {
        const SECOND: i64 = 1_000_000_000;
        const STEPS: [i64; 26] = [
            1,
            2,
            5,
            10,
            15,
            30,
            60,
            120,
            300,
            600,
            900,
            1800,
            3600,
            7200,
            10_800,
            21_600,
            43_200,
            86_400,
            172_800,
            432_000,
            864_000,
            2_592_000,
            7_776_000,
            31_536_000,
            315_360_000,
            3_153_600_000,
        ];
        let range = self.to.saturating_sub(self.from).max(1);
        let step = STEPS.iter().map(|step| step * SECOND).find(|step| range / step <= 8).unwrap_or(range);
        // A recording of less than two seconds has two or three marks.
        let step = if range < 2 * SECOND { (range / 2).max(1) } else { step };
        let mut at = self.from.div_euclid(step) * step;
        let bottom = HEIGHT - BOTTOM;
        while at <= self.to {
            if at >= self.from {
                let share = at.saturating_sub(self.from) as f64 / range as f64;
                let x = LEFT + (WIDTH - LEFT - RIGHT) * share;
                let text = moment(at.max(0) as u64);
                let label = match () {
                    () if range > 86_400 * SECOND => format!("{} {}", &text[5..10], &text[11..16]),
                    () if step % (60 * SECOND) == 0 => text[11..16].to_string(),
                    () if step % SECOND == 0 => text[11..19].to_string(),
                    () => text[11..23].to_string(),
                };
                self.svg += &format!(
                    "<line x1=\"{x:.1}\" y1=\"{bottom}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#888\"/><text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>\n",
                    bottom + 5.0,
                    bottom + 20.0
                );
            }
            // The file chooses its moments, so the next step may overflow an i64.
            let Some(next) = at.checked_add(step) else { break };
            at = next;
        }
        let day = &moment(self.from.max(0) as u64)[..10];
        self.svg += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{day}, UTC</text>\n",
            LEFT + (WIDTH - LEFT - RIGHT) / 2.0,
            bottom + 40.0
        );
    }

    /// `x y` of each column where the curve may turn: not of a column between two equal neighbours.
    fn turns(&self, values: &[Option<f64>]) -> Vec<String> {
        let is_turn =
            |i: usize| i == 0 || i + 1 == values.len() || values[i - 1] != values[i] || values[i + 1] != values[i];
        let there = values.iter().enumerate().filter(|(i, _)| is_turn(*i));
        there.filter_map(|(i, v)| Some(format!("{:.1} {:.1}", x(i), self.y((*v)?)))).collect()
    }

    /// One reading is a point: nothing is known about the time around it.
    fn line(&mut self, values: &[Option<f64>], colour: &str, width: f64, dash: &str) {
        if let Some((column, value)) = only(values) {
            let (x, y) = (x(column), self.y(value));
            self.svg += &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>\n");
            return;
        }
        self.svg += &format!(
            "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-linejoin=\"round\"{dash}/>\n",
            self.turns(values).join("L")
        );
    }

    /// Fills the area between two curves where `upper` is above `lower`.
    fn area(&mut self, lower: &[Option<f64>], upper: &[Option<f64>], fill: &str, opacity: f64) {
        let both = || lower.iter().zip(upper).map(|(lower, upper)| lower.zip(*upper));
        let tops: Vec<Option<f64>> = both().map(|both| both.map(|(lower, upper)| upper.max(lower))).collect();
        let bottoms: Vec<Option<f64>> = both().map(|both| both.map(|(lower, _)| lower)).collect();
        if let (Some((column, upper)), Some((_, lower))) = (only(&tops), only(&bottoms)) {
            let (x, y, height) = (x(column) - 4.0, self.y(upper), self.y(lower) - self.y(upper));
            self.svg += &format!(
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"8\" height=\"{height:.1}\" fill=\"{fill}\" fill-opacity=\"{opacity}\"/>\n"
            );
            return;
        }
        let path: Vec<String> = self.turns(&tops).into_iter().chain(self.turns(&bottoms).into_iter().rev()).collect();
        if !path.is_empty() {
            let path = path.join("L");
            self.svg += &format!("<path d=\"M{path}Z\" fill=\"{fill}\" fill-opacity=\"{opacity}\" stroke=\"none\"/>\n");
        }
    }

    fn name(&mut self, colour: &str, name: &str, more: &str) {
        let left = WIDTH - RIGHT + 16.0;
        self.svg += &format!(
            "<rect x=\"{left}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text><text x=\"{:.1}\" y=\"{:.1}\" fill=\"#555\">{}</text>\n",
            self.legend - 10.0,
            left + 18.0,
            self.legend,
            xml(&cut(name, 26)),
            left + 18.0,
            self.legend + 14.0,
            xml(more)
        );
        self.legend += 36.0;
    }

    fn end(mut self) -> String {
        self.svg += "</svg>\n";
        self.svg
    }
}

fn frame(history: &History, title: &str, height: f64) -> String {
    let subtitle = format!("{}   {}", head(history), period(history));
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"12\" fill=\"#222\">\n<title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n<text x=\"{LEFT}\" y=\"22\" font-size=\"16\" font-weight=\"600\">{}</text>\n<text x=\"{LEFT}\" y=\"40\" fill=\"#555\">{}</text>\n",
        xml(title),
        xml(title),
        xml(&cut(&subtitle, 150))
    )
}

fn highest<'v>(curves: impl Iterator<Item = &'v Vec<Option<f64>>>) -> f64 {
    curves.flatten().flatten().fold(0.0, |highest: f64, value| highest.max(*value))
}

fn ends(values: &[Option<f64>]) -> (f64, f64) {
    let mut there = values.iter().flatten();
    let first = there.next().copied().unwrap_or(0.0);
    (first, there.next_back().copied().unwrap_or(first))
}

fn from_to(values: &[Option<f64>], readings: u64) -> String {
    let (first, last) = ends(values);
    let bytes = |value: f64| Bytes(value.max(0.0) as u64);
    if readings == 1 && only(values).is_some() {
        return format!("{}, 1 reading", bytes(last));
    }
    format!("{} → {} ({})", bytes(first), bytes(last), signed(last - first))
}

fn readings(series: &Series) -> u64 {
    series.points().iter().map(|point| point.count).sum()
}

/// The sentence for a recording that `plimsoll record` did not make.
const NO_RSS: &str = "the recording has no RSS over time: JDKs write jdk.ResidentSetSize from version 21 on, and native images don't; plimsoll record PID -o FILE.jfr records RSS for every process";

/// The title, with the time of the last reading where that is older than the end.
fn dated(history: &History, title: &str, what: &str, last_ns: i64) -> String {
    let Some(ago) = history.before_the_end(last_ns) else { return title.to_owned() };
    let at = moment_text(u64::try_from(last_ns).unwrap_or(0));
    format!("{title} ({what} last read {at}, {} before the end)", duration(ago))
}

fn rss_gap(history: &History) -> Result<String, String> {
    let rss = history.rss().ok_or_else(|| {
        let gap = history.why_no_rss();
        if gap.remedy.is_empty() { gap.reason } else { NO_RSS.to_owned() }
    })?;
    let heap = history.java_heap().ok_or(match history.is_own() {
        true => "the recording has no committed Java heap",
        false => "the recording has no committed Java heap: start the JVM with -XX:NativeMemoryTracking=summary, enable jdk.GCHeapSummary, or use plimsoll record",
    })?;
    let title = dated(history, "RSS and committed Java heap", "RSS", last_of(history, rss));
    let [rss_readings, heap_readings] = [rss, heap].map(readings);
    let [rss, heap] = [rss, heap].map(|series| alone(history, series));
    let limit = history.one(Measure::Limit).map(|series| alone(history, series));
    let top = highest([&rss, &heap].into_iter().chain(&limit));
    let mut plot = Plot::new(history, &title, top);
    let zero = vec![Some(0.0); COLUMNS];
    plot.area(&zero, &heap, COLOURS[0], 0.15);
    plot.area(&heap, &rss, COLOURS[5], 0.35);
    plot.line(&heap, COLOURS[0], 2.0, "");
    plot.line(&rss, RSS, 2.0, "");
    let gap: Vec<Option<f64>> = heap.iter().zip(&rss).map(|(heap, rss)| Some((*rss)? - (*heap)?)).collect();
    plot.name(RSS, "RSS", &from_to(&rss, rss_readings));
    plot.name(COLOURS[0], "Java heap, committed", &from_to(&heap, heap_readings));
    let (first, last) = ends(&gap);
    // A committed but untouched heap can exceed RSS: then the gap is negative, and nothing is shaded.
    let change = match only(&gap) {
        Some(_) => signed(last),
        None if gap.iter().all(Option::is_none) => "no time has readings of both".into(),
        None => format!("{} → {}", signed(first), signed(last)),
    };
    plot.name("#EDA883", "gap: RSS above the heap", &change);
    if let Some(limit) = limit {
        plot.line(&limit, "#B00020", 1.5, " stroke-dasharray=\"6 4\"");
        plot.name("#B00020", "memory limit", &Bytes(ends(&limit).1 as u64).to_string());
    }
    Ok(plot.end())
}

struct Layer {
    name: String,
    values: Vec<Option<f64>>,
    mean: f64,
    readings: u64,
}

fn stacked(history: &History, measure: Measure, title: &str) -> Result<String, String> {
    // All end together: otherwise their stack would fall where one of them ends.
    let last_ns = history.last_reading_ns(measure).unwrap_or(history.from_ns);
    let mut layers: Vec<Layer> = history
        .of(measure)
        .filter_map(|(name, series)| {
            let figures = series.figures().filter(|figures| figures.max > 0)?;
            let values = columns(history, series, last_ns);
            Some(Layer { name: name.to_string(), values, mean: figures.mean, readings: figures.readings })
        })
        .collect();
    if layers.is_empty() {
        return Err(match measure {
            _ if history.is_own() => format!("the recording has no reading of memory {title}"),
            Measure::Line => "the recording has no ledger lines: only recordings of plimsoll record have them".into(),
            _ => {
                "the recording has no jdk.NativeMemoryUsage: start the JVM with -XX:NativeMemoryTracking=summary".into()
            }
        });
    }
    layers.sort_by(|one, other| other.mean.total_cmp(&one.mean));
    if layers.len() > LAYERS + 1 {
        let rest = layers.split_off(LAYERS);
        let mut sum = vec![None; COLUMNS];
        for layer in &rest {
            sum.iter_mut().zip(&layer.values).filter(|(_, v)| v.is_some()).for_each(|(sum, v)| {
                *sum = Some(sum.unwrap_or(0.0) + v.unwrap_or(0.0));
            });
        }
        let readings = rest.iter().map(|layer| layer.readings).max().unwrap_or(0);
        layers.push(Layer { name: format!("{} others", rest.len()), values: sum, mean: 0.0, readings });
    }
    // Nothing is drawn before the first reading and after the last.
    let zero = (0..COLUMNS).map(|column| layers.iter().any(|layer| layer.values[column].is_some()).then_some(0.0));
    let mut sums: Vec<Vec<Option<f64>>> = vec![zero.collect()];
    for layer in &layers {
        let below = &sums[sums.len() - 1];
        sums.push(below.iter().zip(&layer.values).map(|(below, v)| Some((*below)? + v.unwrap_or(0.0))).collect());
    }
    // The lines of a ledger sum to the RSS of the same reading.
    let of_ledger = history.one(Measure::LedgerRss).filter(|_| measure == Measure::Line);
    let rss = of_ledger.or(history.rss());
    let rss_readings = rss.map_or(0, readings);
    let rss = rss.map(|series| alone(history, series));
    let title = dated(history, &format!("Memory {title}"), "all", last_ns);
    let mut plot = Plot::new(history, &title, highest(sums.last().into_iter().chain(&rss)));
    for (number, _) in layers.iter().enumerate() {
        plot.area(&sums[number], &sums[number + 1], COLOURS[number % COLOURS.len()], 0.8);
    }
    if let Some(rss) = &rss {
        plot.line(rss, RSS, 2.0, "");
        plot.name(RSS, "RSS", &from_to(rss, rss_readings));
    }
    // The legend lists the curves from the top of the stack down.
    for (number, layer) in layers.iter().enumerate().rev() {
        plot.name(COLOURS[number % COLOURS.len()], &layer.name, &from_to(&layer.values, layer.readings));
    }
    Ok(plot.end())
}

/// Curves whose growth is shown, the largest first.
const MOST_BARS: usize = 20;

/// Bars from zero; a line across the end shows the interval.
fn growth(history: &History) -> Result<String, String> {
    let measures = [Measure::Rss, Measure::TotalCommitted, Measure::Line, Measure::Committed];
    let mut rows = vec![];
    for measure in measures {
        for (name, series) in history.of(measure) {
            let Some(growth) =
                history.readings_of_growth(measure, name, series).and_then(|readings| readings.figures()?.growth)
            else {
                continue;
            };
            let name =
                if name.is_empty() { measure.title().to_string() } else { format!("{name}, {}", measure.title()) };
            rows.push((name, growth));
        }
    }
    rows.sort_by(|one, other| other.1.per_hour.abs().total_cmp(&one.1.per_hour.abs()));
    let all = rows.len();
    rows.truncate(MOST_BARS);
    if rows.is_empty() {
        return Err("the recording is too short: growth an hour needs at least one minute and six readings".into());
    }
    let height = TOP + BOTTOM + rows.len() as f64 * 24.0;
    let title = match all > MOST_BARS {
        true => format!("Growth an hour, with its 95 % interval: the largest {MOST_BARS} of {all}"),
        false => "Growth an hour, with its 95 % interval".to_owned(),
    };
    let mut svg = frame(history, &title, height);
    let ends = |f: fn(f64, f64) -> f64| rows.iter().fold(0.0, |end, (_, g)| f(f(end, g.least), f(g.most, g.per_hour)));
    let (low, high) = (ends(f64::min), ends(f64::max));
    let (left, right) = (LEFT + 190.0, WIDTH - 270.0);
    let x = |value: f64| left + (right - left) * (value - low) / (high - low).max(1.0);
    for (number, (name, growth)) in rows.iter().enumerate() {
        let y = TOP + 10.0 + number as f64 * 24.0;
        let (from, to) = (x(growth.per_hour.min(0.0)), x(growth.per_hour.max(0.0)));
        let colour = if growth.is_up() { COLOURS[5] } else { COLOURS[8] };
        svg += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text><rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"12\" fill=\"{colour}\"/><line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#111\" stroke-width=\"1.5\"/><text x=\"{:.1}\" y=\"{:.1}\" fill=\"#555\">{} ({} to {})</text>\n",
            left - 10.0,
            y + 4.0,
            xml(&cut(name, 36)),
            y - 6.0,
            (to - from).max(0.5),
            x(growth.least),
            x(growth.most),
            right + 12.0,
            y + 4.0,
            signed(growth.per_hour),
            signed(growth.least),
            signed(growth.most)
        );
    }
    let bottom = height - BOTTOM + 10.0;
    svg += &format!(
        "<line x1=\"{0:.1}\" y1=\"{TOP}\" x2=\"{0:.1}\" y2=\"{bottom:.1}\" stroke=\"#888\"/><text x=\"{0:.1}\" y=\"{1:.1}\" text-anchor=\"middle\">0</text>\n<text x=\"{LEFT}\" y=\"{2:.1}\" fill=\"#555\">coloured: surely growing (the whole interval is above 0)</text>\n</svg>\n",
        x(0.0),
        bottom + 16.0,
        bottom + 34.0
    );
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_observer::recording::Series;

    /// A reading at the beginning of a minute says nothing about the minute's end.
    #[test]
    fn a_chart_draws_no_curve_beyond_the_last_reading() {
        const SECOND: i64 = 1_000_000_000;
        let chart = |readings: &[i64]| {
            let mut history = History::default();
            history.to_ns = 60 * SECOND;
            for (measure, name, bytes) in
                [(Measure::Rss, "", 778), (Measure::LineCommitted, "java-heap", 64), (Measure::Line, "java-heap", 60)]
            {
                let mut series = Series::default();
                readings.iter().for_each(|second| series.push(second * SECOND, bytes << 20));
                history.series.insert((measure, name.to_owned()), series);
            }
            (
                rss_gap(&history).expect("a chart"),
                stacked(&history, Measure::Line, "resident by line").expect("a chart"),
            )
        };
        let (gap, lines) = chart(&[0]);
        for svg in [&gap, &lines] {
            assert!(svg.contains("<circle cx=\"84.0\"") && !svg.contains("<path"), "{svg}");
            assert!(svg.contains(">778 MiB, 1 reading<"), "{svg}");
            assert!(svg.contains("last read 1970-01-01 00:00:00 UTC, 1 min 0 s before the end)<"), "{svg}");
        }
        assert!(lines.contains(">60.0 MiB, 1 reading<") && gap.contains(">+714 MiB<"), "{gap}{lines}");
        // The middle of 706 pixels.
        let (gap, _) = chart(&[0, 30]);
        assert!(gap.contains(">778 MiB → 778 MiB (+0 B)<") && gap.contains("L437.6 "), "{gap}");
        assert!(!gap.contains("L790.0 "), "{gap}");
        let (gap, _) = chart(&[0, 60]);
        assert!(gap.contains("L790.0 ") && !gap.contains("last read"), "{gap}");
    }

    #[test]
    fn a_chart_of_growth_says_how_many_curves_it_lacks() {
        let title = |curves: usize| {
            let mut history = History::default();
            for number in 0..curves {
                let mut series = Series::default();
                for minute in 0..20 {
                    series.push(minute * 60_000_000_000, (minute as u64) << 20);
                }
                history.series.insert((Measure::Line, format!("line {number}")), series);
            }
            growth(&history).expect("a chart").contains("interval: the largest 20 of 21")
        };
        assert!(!title(MOST_BARS) && title(MOST_BARS + 1));
    }
}
