//! The pages of `longfat lab serve`: what lies below a directory, one result, one run, two compared, and a run in
//! progress. HTML from what is on disk; who asks, and over what, is not known here.

mod live;
mod run_index;

pub use run_index::{Found, RunIndex, State, inside};

use crate::{
    ReportError, compare,
    figures::{self, overview},
    load::{Case, Experiment},
    page::{self, curves, document, tables},
    plot::svg::escape,
    quantity::utc,
};
use longfat_schema::run::{
    Kind, RESULT_FILE, ResultManifest, RunDirectory, RunError, RunStatus, read_versioned,
};
use std::{fmt::Write as _, path::Path, time::SystemTime};

const STYLE: &str = include_str!("site.css");
const SCRIPT: &str = include_str!("site.js");
/// Cases whose goodput is drawn above the table; of more the drawing says nothing.
const CASES_DRAWN: usize = 60;

/// What a reader wants to see of the list; empty is everything.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// In the name, the title or the directory, whatever the case.
    pub text: String,
    /// [`State::name`].
    pub state: String,
    /// As manifests name it.
    pub backend: String,
    /// `met` or `missed`.
    pub expectations: String,
}

impl Filter {
    fn keeps(&self, found: &Found) -> bool {
        let text = self.text.to_lowercase();
        let in_text =
            [&found.id, &found.name, &found.title].iter().any(|own| own.to_lowercase().contains(&text));
        let is = |wanted: &str, own: &str| wanted.is_empty() || wanted == own;
        in_text
            && is(&self.state, found.state.name())
            && is(&self.backend, &found.backend)
            && is(&self.expectations, verdict_of(found))
    }
}

/// Whether its expectations were met: `met`, `missed`, or nothing where there is none, or where not every one was
/// judged over all its runs.
fn verdict_of(found: &Found) -> &'static str {
    let is_over = !matches!(found.state, State::Running | State::Interrupted);
    match found.expectations {
        [_, missed, _] if missed > 0 => "missed",
        _ if !is_over => "",
        [met, 0, 0] if met > 0 => "met",
        _ => "",
    }
}

/// The address of a page about something found.
fn address(page: &str, id: &str) -> String {
    format!("/{page}?of={}", encoded(id))
}

/// Percent-encoded for a query (RFC 3986, unreserved characters stay).
fn encoded(text: &str) -> String {
    let mut safe = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            safe.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(safe, "%{byte:02X}");
        }
    }
    safe
}

/// A page with the way back above it. `way` holds addresses and names, the last of which is the page itself.
fn within(title: &str, way: &[(String, &str)], main: &str) -> String {
    let link = |(address, name): &(String, &str)| {
        format!("<li><a href=\"{}\">{}</a></li>", escape(address), escape(name))
    };
    let links: String = way.iter().map(link).collect();
    let nav = format!(
        "<nav class=\"way\" aria-label=\"Where you are\"><ul><li><a href=\"/\">All runs</a></li>{links}</ul></nav>"
    );
    document(title, &format!("<style>{STYLE}</style>{nav}{main}"))
}

/// The list of everything found.
pub fn index(index: &RunIndex, filter: &Filter) -> String {
    let shown: Vec<&Found> = index.found.iter().filter(|found| filter.keeps(found)).collect();
    let count = format!("{} of {} shown", shown.len(), index.found.len());
    let cut = if index.is_cut {
        " There is more than is looked through: give a directory further down."
    } else {
        ""
    };
    let list = if shown.is_empty() {
        "<p>Nothing fits. <a href=\"/\">Show everything</a></p>".to_owned()
    } else {
        list(&shown)
    };
    let main = format!(
        "<header><h1>Runs</h1></header>{}<p class=\"note\" role=\"status\">{count}.{cut}</p>{list}",
        filters(index, filter),
    );
    document("Runs", &format!("<style>{STYLE}</style>{main}"))
}

fn filters(index: &RunIndex, filter: &Filter) -> String {
    let mut backends: Vec<&str> = index.found.iter().map(|found| found.backend.as_str()).collect();
    backends.sort_unstable();
    backends.dedup();
    backends.retain(|backend| !backend.is_empty());
    let states: Vec<&str> = State::ALL.map(State::name).to_vec();
    format!(
        "<form class=\"filters\" method=\"get\" action=\"/\"><label>Name <input type=\"search\" name=\"text\" value=\"{}\" \
         maxlength=\"200\"></label>{}{}{}<button>Filter</button></form>",
        escape(&filter.text),
        choice("State", "state", &states, &filter.state),
        choice("World", "backend", &backends, &filter.backend),
        choice("Expectations", "expectations", &["met", "missed"], &filter.expectations),
    )
}

fn choice(label: &str, name: &str, values: &[&str], chosen: &str) -> String {
    let option = |value: &&str| {
        let selected = if *value == chosen { " selected" } else { "" };
        format!("<option{selected}>{}</option>", escape(value))
    };
    let options: String = values.iter().map(option).collect();
    format!(
        "<label>{label} <select name=\"{name}\"><option value=\"\">any</option>{options}</select></label>"
    )
}

/// The table of what is shown; any two of it can be compared.
fn list(shown: &[&Found]) -> String {
    let heads =
        ["Result", "A", "B", "State", "Runs", "Expectations", "World", "Begun"].map(tables::text_heading);
    let rows: String = shown.iter().map(|found| row(found)).collect();
    let table = tables::scrolling("Results and single runs, the newest first", &heads.concat(), &rows);
    format!(
        "<form class=\"compare\" method=\"get\" action=\"/compare\">{table}<p><button>Compare A with B</button></p></form>"
    )
}

fn row(found: &Found) -> String {
    let name = if found.title.is_empty() { &found.name } else { &found.title };
    let name = match &found.trouble {
        Some(_) => escape(name),
        None => format!("<a href=\"{}\">{}</a>", escape(&address("result", &found.id)), escape(name)),
    };
    let trouble =
        found.trouble.as_ref().map_or(String::new(), |why| format!("<small>{}</small>", escape(why)));
    let radio = |side: &str| {
        let label = format!("{} as {}", found.id, side.to_uppercase());
        let disabled = if found.trouble.is_some() { " disabled" } else { "" };
        format!(
            "<td class=\"text pick\"><label><input type=\"radio\" name=\"{side}\" value=\"{}\" required{disabled} aria-label=\"{}\">\
             </label></td>",
            escape(&found.id),
            escape(&label),
        )
    };
    let text = |content: String| format!("<td class=\"text\">{content}</td>");
    let begun = if found.started_unix_ms == 0 { String::new() } else { utc(found.started_unix_ms) };
    format!(
        "<tr><th scope=\"row\">{name}<small><code>{}</code></small>{trouble}</th>{}{}{}{}{}{}{}</tr>",
        escape(&found.id),
        radio("a"),
        radio("b"),
        text(state_chip(found.state)),
        text(runs_in_words(found.runs)),
        text(expectations_chip(found)),
        text(escape(&found.backend)),
        text(begun),
    )
}

/// Sign and word beside the colour: nothing is said by colour alone.
fn state_chip(state: State) -> String {
    let (class, sign) = match state {
        State::Complete => ("met", "✓"),
        State::Running => ("open", "…"),
        State::Interrupted => ("open", "‖"),
        State::Single => ("open", "1"),
        State::Damaged => ("missed", "✗"),
    };
    format!("<span class=\"chip {class}\">{sign} {}</span>", state.name())
}

fn runs_in_words([done, unexplained, invalid, failed]: [usize; 4]) -> String {
    let mut words = format!("{done} valid");
    for (count, name) in [(unexplained, "unexplained"), (invalid, "invalid"), (failed, "failed")] {
        if count > 0 {
            let _ = write!(words, ", {count} {name}");
        }
    }
    words
}

fn expectations_chip(found: &Found) -> String {
    let [met, missed, open] = found.expectations;
    match (met + missed + open, verdict_of(found)) {
        (0, _) => "–".to_owned(),
        (all, "missed") => format!("<span class=\"chip missed\">✗ {missed} of {all} missed</span>"),
        (_, "met") => format!("<span class=\"chip met\">✓ {met} met</span>"),
        (all, _) if open == 0 => format!("<span class=\"chip open\">– {met} of {all} met so far</span>"),
        (all, _) => format!("<span class=\"chip open\">– {open} of {all} not judged</span>"),
    }
}

/// One result: what it came to, and the way to each of its runs. A run by itself is its own page.
///
/// # Errors
/// It cannot be read.
pub fn result(index: &RunIndex, found: &Found, now: SystemTime) -> Result<String, ReportError> {
    let here = (address("result", &found.id), found.id.as_str());
    let live = if found.state == State::Running { live_section(index, found, now) } else { String::new() };
    let experiment = match index.open(found) {
        Ok(experiment) => experiment,
        Err(ReportError::NoRuns(_)) => {
            let title = format!("<header><h1>{}</h1></header>", escape(&found.name));
            return Ok(within(&found.name, &[here], &format!("{title}{live}<p>No run has ended yet.</p>")));
        }
        Err(error) => return Err(error),
    };
    if found.state == State::Single {
        return Ok(within(&experiment.title.clone(), &[here], &whole(&experiment)));
    }
    let sections = [
        page::header(&experiment, "e1"),
        live,
        page::verdict(&experiment),
        page::run_states(&experiment, "each run's page"),
        over_an_axis(&experiment),
        goodput(&experiment),
        tables::summary(&experiment),
        runs(&experiment, &found.id),
        tables::foot([&experiment]),
    ];
    Ok(within(&experiment.title.clone(), &[here], &sections.concat()))
}

/// Metrics over an axis of the sweep; of many cases goodput alone.
fn over_an_axis(experiment: &Experiment) -> String {
    let mut found = figures::Curves::of(experiment, None, "e1");
    if let Some(curves) = found.as_mut().filter(|_| experiment.cases.len() > CASES_DRAWN) {
        curves.measures.truncate(1);
    }
    curves::section(found.as_ref())
}

fn goodput(experiment: &Experiment) -> String {
    if experiment.cases.len() > CASES_DRAWN {
        return format!(
            "<p class=\"note\">It has {} cases; the goodput of up to {CASES_DRAWN} is drawn here.</p>",
            experiment.cases.len()
        );
    }
    let figure = overview::goodput(experiment, "goodput");
    format!(
        "<section><h2>By case</h2><div class=\"pair\"><figure>{}</figure></div></section>",
        figure.inline()
    )
}

/// The way to every run.
fn runs(experiment: &Experiment, id: &str) -> String {
    let row = |case: &Case| {
        let link = |run: &RunDirectory| {
            let path = run.path.strip_prefix(&experiment.path).unwrap_or(&run.path).to_string_lossy();
            let address = format!("{}&run={}", address("run", id), encoded(&path));
            let (repeat, status) = (run.manifest.repeat, run.manifest.status);
            let mark =
                if status == RunStatus::Done { String::new() } else { format!(" ({})", status.name()) };
            format!(
                "<a href=\"{}\" aria-label=\"{}, repeat {repeat}{mark}\">r{repeat}{mark}</a>",
                escape(&address),
                escape(&case.info.title)
            )
        };
        let links: Vec<String> = case.runs.iter().map(link).collect();
        format!(
            "<tr><th scope=\"row\">{}</th><td class=\"text\">{}</td></tr>",
            escape(&case.info.title),
            links.join(" · ")
        )
    };
    let rows: String = experiment.cases.iter().map(row).collect();
    let heads = ["Case", "Each run over time"].map(tables::text_heading).concat();
    format!("<section><h2>Runs</h2>{}</section>", tables::scrolling("Every run", &heads, &rows))
}

/// Everything about it, drawn.
fn whole(experiment: &Experiment) -> String {
    let drawn = figures::draw(experiment, "e1", &figures::Choice::default());
    page::experiment(0, experiment, &drawn) + &tables::foot([experiment])
}

/// One run of a result; `None` when the result has none at this path.
///
/// # Errors
/// It cannot be read.
pub fn run(index: &RunIndex, found: &Found, path: &str) -> Result<Option<String>, ReportError> {
    let Some(directory) = index.run_directory(found, path) else { return Ok(None) };
    let experiment = Experiment::open(&directory)?;
    let way = [
        (address("result", &found.id), found.id.as_str()),
        (format!("{}&run={}", address("run", &found.id), encoded(path)), path),
    ];
    Ok(Some(within(&experiment.title.clone(), &way, &whole(&experiment))))
}

/// Two compared.
///
/// # Errors
/// One cannot be read.
pub fn compared(index: &RunIndex, sides: [&Found; 2]) -> Result<String, ReportError> {
    let directories = sides.map(|found| index.directory(found));
    let side = |index: usize| -> Result<compare::Side, RunError> {
        let mut side = compare::Side::open(&directories[index])?;
        side.name.clone_from(&sides[index].id);
        Ok(side)
    };
    let comparison = compare::compare(&side(0)?, &side(1)?);
    let experiments = [index.open(sides[0])?, index.open(sides[1])?];
    let here = format!("/compare?a={}&b={}", encoded(&sides[0].id), encoded(&sides[1].id));
    Ok(within("Two results compared", &[(here, "A and B")], &compare::sections(&comparison, &experiments)))
}

/// A page that says why there is none.
pub fn refusal(title: &str, message: &str) -> String {
    within(title, &[], &format!("<h1>{}</h1><p>{}</p>", escape(title), escape(message)))
}

/// What a running result's page shows anew every second.
///
/// # Errors
/// It cannot be read.
pub fn live(index: &RunIndex, found: &Found, now: SystemTime) -> Result<String, RunError> {
    let directory = index.directory(found);
    let result: ResultManifest = read_versioned(&directory.join(RESULT_FILE), Kind::Result)?;
    Ok(progress(&directory, &result, now))
}

fn live_section(index: &RunIndex, found: &Found, now: SystemTime) -> String {
    let shown = live(index, found, now).unwrap_or_default();
    format!(
        "<section><h2>Under way</h2><p><button type=\"button\" id=\"pause\" class=\"scripted\" aria-pressed=\"false\">Pause</button> \
         <noscript><a href=\"\">Show it as it is now</a></noscript></p>\
         <div id=\"live\" data-from=\"{}\">{shown}</div></section><script>{SCRIPT}</script>",
        escape(&address("live", &found.id)),
    )
}

fn progress(directory: &Path, result: &ResultManifest, now: SystemTime) -> String {
    let made = result.runs.len();
    let count = |status: RunStatus| result.runs.iter().filter(|run| run.status == status).count();
    let words = runs_in_words(RunStatus::ALL.map(count));
    let bar = match result.planned {
        Some(planned) => format!(
            "<progress max=\"{planned}\" value=\"{made}\" aria-label=\"runs made\"></progress> {made} of {planned} runs made: {words}."
        ),
        None => format!("{made} runs made: {words}."),
    };
    let runs: String = live::runs(directory, now).iter().map(live::html).collect();
    format!("<p data-status=\"{}\">{bar}</p>{runs}", State::Running.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_hold_any_name() {
        assert_eq!(address("result", "a b/c&d=é"), "/result?of=a%20b/c%26d%3D%C3%A9");
    }

    #[test]
    fn nothing_that_is_named_in_a_run_gets_into_a_page_as_markup() {
        let bad = "<script>alert(1)</script>\"'";
        let found = Found {
            id: bad.to_owned(),
            name: bad.to_owned(),
            title: bad.to_owned(),
            started_unix_ms: 0,
            backend: bad.to_owned(),
            state: State::Damaged,
            runs: [0; 4],
            expectations: [0; 3],
            trouble: Some(bad.to_owned()),
        };
        let html = row(&found) + &choice("x", "y", &[bad], bad) + &refusal(bad, bad);
        assert!(!html.replace(page::SCRIPT, "").contains("<script>alert"), "{html}");
    }

    #[test]
    fn a_filter_keeps_what_fits_all_of_it() {
        let found = Found {
            id: "a/Sweep".to_owned(),
            name: "sweep".to_owned(),
            title: "Window sweep".to_owned(),
            started_unix_ms: 1,
            backend: "sim".to_owned(),
            state: State::Complete,
            runs: [1, 0, 0, 0],
            expectations: [2, 1, 0],
            trouble: None,
        };
        let keeps = |filter: Filter| filter.keeps(&found);
        assert!(keeps(Filter::default()));
        assert!(keeps(Filter { text: "WINDOW".into(), backend: "sim".into(), ..Filter::default() }));
        assert!(keeps(Filter {
            state: "complete".into(),
            expectations: "missed".into(),
            ..Filter::default()
        }));
        assert!(!keeps(Filter { expectations: "met".into(), ..Filter::default() }));
        assert!(!keeps(Filter { text: "window".into(), backend: "emulated".into(), ..Filter::default() }));
    }
}
