//! The page of `longfat why`: what held connections over time, what that costs, and what mends it. What is said is the
//! caller's; here it is laid out and drawn.

use crate::{
    page::{
        FIGURES_HELP, document,
        tables::{column_heading, scrolling, text_heading, unbroken},
    },
    plot::{
        Figure,
        svg::escape,
        time::{Band, Series, Shape, TimeChart},
    },
    quantity::Quantity,
};
use longfat_analyze::words::rate;
use std::collections::BTreeMap;

/// Connections that are drawn; of more the first, and their number is said.
pub const MOST_DRAWN: usize = 20;
/// Causes that have a colour of their own; others share the last.
const COLOURS: usize = 5;

/// Everything the page says.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// What was asked.
    pub title: String,
    /// How it was found: when, for how long; plain text.
    pub about: String,
    /// Seconds after which the page is there anew, where it is renewed.
    pub renewed_s: Option<u64>,
    /// Time of all connections by cause, shown where there are several.
    pub by_cause: Vec<CauseTotal>,
    /// The first matters most.
    pub connections: Vec<Connection>,
}

/// All connections with the same first cause.
#[derive(Debug, Clone, PartialEq)]
pub struct CauseTotal {
    /// Name of the cause.
    pub name: String,
    /// Connections it is the first cause of.
    pub connections: usize,
    /// Part of the time of all connections under it, 0 to 1.
    pub share: f64,
    /// What those connections get together, bits per second.
    pub rate_bps: f64,
}

/// One connection.
#[derive(Debug, Clone, Default)]
pub struct Connection {
    /// `rsync[4711] to 192.0.2.7:22`
    pub who: String,
    /// What it gets, why, and what that costs.
    pub sentence: String,
    /// Every cause it had.
    pub causes: Vec<CauseShare>,
    /// What mends the first that can be mended.
    pub remedies: Vec<Mend>,
    /// The course, in order of time.
    pub stretches: Vec<Stretch>,
}

/// A cause of one connection.
#[derive(Debug, Clone, PartialEq)]
pub struct CauseShare {
    /// Name of the cause.
    pub name: String,
    /// Part of the time, 0 to 1.
    pub share: f64,
    /// Source of the statement.
    pub basis: String,
    /// The figures behind it.
    pub evidence: String,
    /// The rate without it in words, and its least in bits per second, by which causes are ranked.
    pub without: Option<(String, f64)>,
}

/// A remedy.
#[derive(Debug, Clone, PartialEq)]
pub struct Mend {
    /// Where, and what it does.
    pub what: String,
    /// What to paste.
    pub command: Option<String>,
    /// What it costs others, and how it is undone.
    pub note: String,
}

/// One stretch of a connection's time.
#[derive(Debug, Clone, PartialEq)]
pub struct Stretch {
    /// Beginning, seconds.
    pub from_s: f64,
    /// End, seconds.
    pub to_s: f64,
    /// Names of causes, with their part of the stretch, 0 to 1.
    pub causes: Vec<(String, f64)>,
    /// Payload per second, bits.
    pub rate_bps: f64,
    /// Round trip, microseconds.
    pub rtt_us: Option<f64>,
    /// Congestion window.
    pub cwnd_bytes: Option<u64>,
    /// Window of the receiver.
    pub window_bytes: Option<u64>,
    /// Payload under way.
    pub flight_bytes: u64,
}

/// The whole page.
pub fn html(page: &Page) -> String {
    let styles = styles(page);
    let drawn = page.connections.iter().take(MOST_DRAWN).enumerate();
    let sections: String = drawn.map(|(index, one)| connection(index + 1, one, &styles)).collect();
    let main = [header(page), by_cause(page), contents(page), help(page), sections].concat();
    let page_html = document(&page.title, &format!("<article>{main}</article>"));
    match page.renewed_s {
        // The address keeps zoom and hidden series over it.
        Some(seconds) => page_html.replacen(
            "<title>",
            &format!("<meta http-equiv=\"refresh\" content=\"{seconds}\"><title>"),
            1,
        ),
        None => page_html,
    }
}

fn header(page: &Page) -> String {
    let renewed = page.renewed_s.map_or_else(String::new, |seconds| format!(" · renewed every {seconds} s"));
    format!(
        "<header><p class=\"kicker\">Why it is slow</p><h1>{}</h1><p class=\"meta\">{}{renewed}</p></header>",
        escape(&page.title),
        escape(&page.about),
    )
}

/// One colour for a cause in all figures: by the time under it, over all connections.
fn styles(page: &Page) -> BTreeMap<&str, usize> {
    let mut times: BTreeMap<&str, f64> = BTreeMap::new();
    for stretch in page.connections.iter().flat_map(|one| &one.stretches) {
        for (name, share) in &stretch.causes {
            *times.entry(name).or_default() += share * (stretch.to_s - stretch.from_s);
        }
    }
    let mut names: Vec<(&str, f64)> = times.into_iter().collect();
    names.sort_by(|a, b| b.1.total_cmp(&a.1));
    let is_grey = |name: &str| matches!(name, "unknown" | "program_idle" | "other_end_sends");
    let coloured = names.iter().filter(|(name, _)| !is_grey(name)).enumerate();
    let mut styles: BTreeMap<&str, usize> =
        coloured.map(|(rank, (name, _))| (*name, rank.min(COLOURS - 1))).collect();
    styles.extend(names.iter().filter(|(name, _)| is_grey(name)).map(|(name, _)| (*name, COLOURS)));
    styles
}

fn by_cause(page: &Page) -> String {
    if page.connections.len() < 2 {
        return String::new();
    }
    let row = |cause: &CauseTotal| {
        format!(
            "<tr><th scope=\"row\"><code>{}</code></th><td>{}</td><td>{:.1} %</td><td>{}</td></tr>",
            escape(&cause.name),
            cause.connections,
            100.0 * cause.share,
            if cause.connections > 0 { rate(cause.rate_bps) } else { "–".to_owned() },
        )
    };
    let rows: String = page.by_cause.iter().map(row).collect();
    let heads = text_heading("Cause")
        + &["First cause of connections", "Of all time", "They get"].map(column_heading).concat();
    format!(
        "<section><h2>By cause</h2>{}</section>",
        scrolling("Time of all connections by cause", &heads, &rows)
    )
}

fn contents(page: &Page) -> String {
    let all = page.connections.len();
    if all == 0 {
        return "<p>No connection could be judged.</p>".to_owned();
    }
    if all == 1 {
        return String::new();
    }
    let link = |(index, one): (usize, &Connection)| {
        format!("<li><a href=\"#c{}\">{}</a></li>", index + 1, escape(&one.who))
    };
    let links: String = page.connections.iter().take(MOST_DRAWN).enumerate().map(link).collect();
    let more = all.saturating_sub(MOST_DRAWN);
    let more = if more > 0 {
        format!("<p class=\"note\">{more} more are in the table above and not drawn; --json has them.</p>")
    } else {
        String::new()
    };
    format!("<nav aria-label=\"Connections\"><ol class=\"contents\">{links}</ol></nav>{more}")
}

fn help(page: &Page) -> String {
    if page.connections.is_empty() {
        return String::new();
    }
    format!(
        "<p class=\"note\">Every moment has one cause; a stretch with several shows their parts. {FIGURES_HELP}</p>"
    )
}

fn connection(number: usize, one: &Connection, styles: &BTreeMap<&str, usize>) -> String {
    let figures: String = figures(&format!("c{number}"), one, styles)
        .iter()
        .map(|f| format!("<figure>{}</figure>", f.inline()))
        .collect();
    let figures = if figures.is_empty() {
        "<p class=\"note\">There is no course to draw.</p>".to_owned()
    } else {
        format!("<div class=\"panels course\">{figures}</div>")
    };
    format!(
        "<section class=\"case\" id=\"c{number}\"><h3>{}</h3><p class=\"lead\">{}</p>{}{figures}{}</section>\n",
        escape(&one.who),
        unbroken(&escape(&one.sentence)),
        causes(one),
        remedies(&one.remedies),
    )
}

/// Ranked by the rate without them; those without a price behind, by their time.
fn causes(one: &Connection) -> String {
    let mut ranked: Vec<&CauseShare> = one.causes.iter().collect();
    let price = |cause: &CauseShare| cause.without.as_ref().map_or(0.0, |(_, least_bps)| *least_bps);
    ranked.sort_by(|a, b| price(b).total_cmp(&price(a)).then(b.share.total_cmp(&a.share)));
    let row = |cause: &&CauseShare| {
        format!(
            "<tr><th scope=\"row\"><code>{}</code></th><td>{:.0} %</td><td class=\"text\">{}</td><td class=\"text\">{}</td>\
             <td class=\"text\">{}</td></tr>",
            escape(&cause.name),
            100.0 * cause.share,
            escape(&cause.basis),
            cause.without.as_ref().map_or_else(|| "–".to_owned(), |(words, _)| escape(words)),
            escape(&cause.evidence),
        )
    };
    let rows: String = ranked.iter().map(row).collect();
    let heads = text_heading("Cause")
        + &column_heading("Of the time")
        + &["Basis", "Without it", "Evidence"].map(text_heading).concat();
    let table = scrolling("Causes, by the rate without them", &heads, &rows);
    format!("<div class=\"causes\">{table}</div>")
}

fn remedies(mends: &[Mend]) -> String {
    let one = |mend: &Mend| {
        let command = mend.command.as_ref();
        let command = command.map_or_else(String::new, |command| {
            format!("<pre tabindex=\"0\"><code>{}</code></pre>", escape(command))
        });
        format!("<li>{}{command}<p class=\"note\">{}</p></li>", escape(&mend.what), escape(&mend.note))
    };
    let all: String = mends.iter().map(one).collect();
    if all.is_empty() { all } else { format!("<h4>What mends it</h4><ul class=\"mends\">{all}</ul>") }
}

fn figures(id: &str, one: &Connection, styles: &BTreeMap<&str, usize>) -> Vec<Figure> {
    let Some((first, last)) = one.stretches.first().zip(one.stretches.last()) else { return Vec::new() };
    let chart = |name: &str, title: String, series: Vec<Series>, bands: Vec<Band>| TimeChart {
        id: format!("{id}-{name}"),
        title,
        description: format!("{name} of {} over time", one.who),
        span: (first.from_s, last.to_s),
        window: None,
        series,
        rug: None,
        logarithmic: false,
        beside: Vec::new(),
        bands,
    };
    let of = |name: &str, title: &str, quantity: Quantity, lines: Vec<(&str, usize, Vec<f64>)>| {
        let known = |values: &Vec<f64>| values.iter().any(|value| value.is_finite());
        let lines: Vec<_> = lines.into_iter().filter(|(.., values)| known(values)).collect();
        let all = lines.iter().flat_map(|(.., values)| values).filter(|value| value.is_finite());
        let unit = quantity.unit(all.copied().fold(0.0, f64::max));
        let series = lines.into_iter().map(|(label, style, values)| Series {
            label: label.to_owned(),
            style,
            faint: false,
            shape: Shape::Step,
            points: held(&one.stretches, values.into_iter().map(|value| value / unit.factor)),
        });
        let series: Vec<Series> = series.collect();
        (!series.is_empty()).then(|| chart(name, format!("{title}, {}", unit.name), series, Vec::new()))
    };
    let all =
        |get: fn(&Stretch) -> Option<f64>| one.stretches.iter().map(|s| get(s).unwrap_or(f64::NAN)).collect();
    let bytes = |get: fn(&Stretch) -> Option<u64>| {
        one.stretches.iter().map(|s| get(s).map_or(f64::NAN, |bytes| bytes as f64)).collect()
    };
    let causes = chart("causes", "Time by cause, %".to_owned(), Vec::new(), bands(&one.stretches, styles));
    let windows = vec![
        ("receiver's window", 2, bytes(|s| s.window_bytes)),
        ("congestion window", 1, bytes(|s| s.cwnd_bytes)),
        ("under way", 0, bytes(|s| Some(s.flight_bytes))),
    ];
    let below = [
        of("rate", "Payload", Quantity::Rate, vec![("rate", 0, all(|s| Some(s.rate_bps)))]),
        of("rtt", "Round trip", Quantity::Time, vec![("round trip", 0, all(|s| s.rtt_us))]),
        of("windows", "Windows", Quantity::Bytes, windows),
    ];
    let charts: Vec<TimeChart> = [Some(causes)].into_iter().chain(below).flatten().collect();
    charts.iter().map(|chart| chart.draw(chart.legend_rows())).collect()
}

/// A value holds over its stretch, whatever is known of the next.
fn held(stretches: &[Stretch], values: impl Iterator<Item = f64>) -> Vec<(f64, f64)> {
    let ends = |(stretch, value): (&Stretch, f64)| [(stretch.from_s, value), (stretch.to_s, value)];
    stretches.iter().zip(values).flat_map(ends).collect()
}

/// The parts of each stretch above one another, the coloured ones from below.
fn bands(stretches: &[Stretch], styles: &BTreeMap<&str, usize>) -> Vec<Band> {
    let mut bands: Vec<Band> = Vec::new();
    for stretch in stretches {
        let style = |name: &str| styles.get(name).copied().unwrap_or(COLOURS);
        let mut parts: Vec<&(String, f64)> = stretch.causes.iter().collect();
        parts.sort_by_key(|(name, _)| (style(name), name.clone()));
        let mut low = 0.0;
        for (name, share) in parts {
            let high = low + 100.0 * share;
            add(
                &mut bands,
                Band {
                    label: name.clone(),
                    style: style(name),
                    span: (stretch.from_s, stretch.to_s),
                    heights: (low, high),
                },
            );
            low = high;
        }
    }
    bands
}

/// What one cause held for several stretches is one band.
fn add(bands: &mut Vec<Band>, band: Band) {
    let whole = |heights: (f64, f64)| heights.0 <= 0.0 && heights.1 >= 99.9;
    match bands.last_mut() {
        Some(last)
            if last.label == band.label
                && whole(last.heights)
                && whole(band.heights)
                && (last.span.1 - band.span.0).abs() < 1e-9 =>
        {
            last.span.1 = band.span.1;
        }
        _ => bands.push(band),
    }
}
