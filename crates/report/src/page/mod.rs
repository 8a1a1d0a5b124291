//! The HTML page: one file, nothing fetched from anywhere, readable without script.

pub(crate) mod curves;
mod details;
mod following;
mod measured;
pub(crate) mod tables;
mod twins;

use crate::{
    figures::{CaseFigures, ExperimentFigures, Panel, RunFigures, Trust},
    load::{Case, Experiment},
    plot,
    plot::svg::escape,
    quantity::{number, utc},
};
use longfat_schema::run::{CellVerdict, Expectation, ResultStatus, RunManifest, RunStatus};

pub(crate) const STYLE: &str = include_str!("page.css");
pub(crate) const SCRIPT: &str = include_str!("page.js");

/// What a reader can do with figures over time; HTML.
pub(crate) const FIGURES_HELP: &str = "<span class=\"scripted\">Point at a figure for values (read from the drawing, to \
    about 1/1500 of the axis). Drag sideways to zoom all figures of a group, double-click to reset. Choose an entry of the \
    legend to hide or show its series. With the keyboard: arrow keys, + and −, Escape; Tab leads to the legend. The page's \
    address keeps what is zoomed and hidden.</span>";

/// Cells that missed an expectation, or were not judged, are shown at once up to so many.
const CELLS_OPEN: usize = 4;

/// The whole page.
pub fn html(experiments: &[(Experiment, ExperimentFigures)]) -> String {
    let title = experiments.first().map_or("longfat report", |(experiment, _)| &experiment.title);
    let together = if experiments.len() > 1 { together(experiments) } else { String::new() };
    let bodies = experiments.iter().enumerate().map(|(index, (e, f))| experiment(index, e, f));
    let bodies: String = bodies.collect();
    document(
        title,
        &format!("{together}{bodies}{}", tables::foot(experiments.iter().map(|(experiment, _)| experiment))),
    )
}

/// What several results come to: each with its verdict, those cases beside each other that several have, and what all
/// connections measured.
fn together(experiments: &[(Experiment, ExperimentFigures)]) -> String {
    let measuring = experiments.iter().filter(|(_, figures)| figures.avail_error.is_some()).count();
    let trust = Trust::of(experiments.iter().map(|(experiment, _)| experiment), "all-avail-trust");
    let trust = trust.filter(|_| measuring > 1).as_ref().map_or_else(String::new, measured::trust);
    let lines =
        experiments.iter().enumerate().map(|(index, (experiment, _))| contents_line(index, experiment));
    format!(
        "<section class=\"comparison\"><h2>{} results</h2><nav aria-label=\"Results\"><ol class=\"contents\">{}</ol></nav>{}{trust}</section>",
        experiments.len(),
        lines.collect::<String>(),
        tables::comparison(experiments),
    )
}

fn contents_line(index: usize, experiment: &Experiment) -> String {
    let judged = experiment.expectations();
    let met = judged.iter().filter(|expectation| expectation.met == Some(true)).count();
    let verdict = match judged.len() {
        0 => String::new(),
        all if met == all && is_complete(experiment) => {
            format!("<span class=\"chip met\">✓ {met} of {all} met</span>")
        }
        all if met == all => format!("<span class=\"chip open\">{met} of {all} met so far</span>"),
        all => format!("<span class=\"chip missed\">{met} of {all} met</span>"),
    };
    format!(
        "<li><a href=\"#e{}\">{}</a>: {} <small>({})</small> {verdict}</li>",
        index + 1,
        escape(&tables::result_name(experiment)),
        escape(&experiment.title),
        escape(&experiment.runs().next().map_or_else(String::new, |run| carried_out(&run.manifest.backend))),
    )
}

/// A page of its own; `main` is HTML.
pub(crate) fn document(title: &str, main: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"generator\" content=\"longfat {version}\"><title>{title}</title>\
         <style>{figure}</style><style>{STYLE}</style></head>\n<body><main>{main}</main>\
         <script>{SCRIPT}</script></body></html>\n",
        version = env!("CARGO_PKG_VERSION"),
        title = escape(title),
        figure = plot::STYLE,
    )
}

pub(crate) fn experiment(index: usize, experiment: &Experiment, figures: &ExperimentFigures) -> String {
    let id = format!("e{}", index + 1);
    let sections = [
        header(experiment, &id),
        verdict(experiment),
        run_states(experiment, "<i>Runs</i> under <i>How it was made</i>"),
        curves::section(figures.curves.as_ref()),
        measured::cells(experiment),
        tables::summary(experiment),
        twins::section(experiment),
        following::section(experiment),
        // Of one run the summary says it all.
        if experiment.runs().count() > 1 { overview(figures) } else { String::new() },
        figures.trust.as_ref().map_or_else(String::new, measured::trust),
        navigation(experiment, &id),
        cases(experiment, figures, &id),
        details::section(experiment, figures),
    ];
    format!("<article id=\"{id}\">{}</article>\n", sections.concat())
}

pub(crate) fn header(experiment: &Experiment, id: &str) -> String {
    let paragraphs = experiment.description().split("\n\n").map(str::trim).filter(|p| !p.is_empty());
    let paragraphs: String = paragraphs.map(|p| format!("<p>{}</p>", escape(p))).collect();
    format!(
        "<header><p class=\"kicker\">{}</p><h1 id=\"{id}-title\">{}</h1><p class=\"meta\">{}</p>\
         <div class=\"prose\">{paragraphs}</div></header>",
        escape(&experiment.name),
        escape(&experiment.title),
        escape(&origin(experiment).join(" · ")),
    )
}

/// What kind of world a run's figures are of.
pub(crate) fn carried_out(backend: &str) -> String {
    match backend {
        "sim" => "simulated in virtual time".to_owned(),
        other => format!("{other} backend"),
    }
}

fn origin(experiment: &Experiment) -> Vec<String> {
    let mut facts: Vec<String> = experiment.started_unix_ms().map(utc).into_iter().collect();
    if let Some(run) = experiment.runs().next() {
        facts.push(carried_out(&run.manifest.backend));
    }
    if let Some(provenance) = experiment.provenance() {
        let revision: String = provenance.git_revision.chars().take(12).collect();
        facts.push(format!("longfat {} ({revision})", provenance.longfat_version));
        facts.push(provenance.kernel.clone());
        facts.push(format!("{} × {}", provenance.cpu_count, provenance.cpu));
    }
    let state = experiment.result.as_ref().map(|result| result.status);
    facts.extend(match state {
        Some(ResultStatus::Running) => Some("NOT COMPLETE: still running, or its program died".to_owned()),
        Some(ResultStatus::Interrupted) => Some("NOT COMPLETE: interrupted".to_owned()),
        _ => None,
    });
    facts
}

/// What the expectations came to; of a result that is not complete, so far: then it is not green.
pub(crate) fn verdict(experiment: &Experiment) -> String {
    let expectations = experiment.expectations();
    if expectations.is_empty() {
        return String::new();
    }
    let met = expectations.iter().filter(|e| e.met == Some(true)).count();
    let missed = expectations.iter().any(|e| e.met == Some(false));
    let (class, so_far) = match (is_complete(experiment), missed) {
        (true, _) if met == expectations.len() => ("met", ""),
        (true, _) => ("missed", ""),
        (false, true) => ("missed", " so far: the result is not complete"),
        (false, false) => ("open", " so far: the result is not complete"),
    };
    let items: String = expectations.iter().map(judged).collect();
    let count = expectations.len();
    format!(
        "<section class=\"verdict {class}\"><h2>{met} of {count} expectations met{so_far}</h2><ul>{items}</ul></section>"
    )
}

/// Whether all runs that were planned have ended.
fn is_complete(experiment: &Experiment) -> bool {
    let status = experiment.result.as_ref().map(|result| result.status);
    !matches!(status, Some(ResultStatus::Running | ResultStatus::Interrupted))
}

fn judged(expectation: &Expectation) -> String {
    let (class, sign, word) = match expectation.met {
        Some(true) => ("met", "✓", "met"),
        Some(false) => ("missed", "✗", "missed"),
        None => ("open", "–", "not judged"),
    };
    format!(
        "<li><span class=\"chip {class}\">{sign} {word}</span> <span>{}{}</span></li>",
        tables::unbroken(&escape(&expectation.text)),
        details_of(expectation),
    )
}

/// The figures; of many cells how many did what, and those that did not meet it.
fn details_of(expectation: &Expectation) -> String {
    if expectation.cells.is_empty() {
        return format!("<br><small>{}</small>", tables::unbroken(&escape(&expectation.detail)));
    }
    let of = |met: Option<bool>| expectation.cells.iter().filter(move |cell| cell.met == met);
    let counts = [(Some(true), "met"), (Some(false), "missed"), (None, "not judged")];
    let counts = counts.map(|(met, word)| (of(met).count(), word));
    let words =
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{word} in {count}"));
    let all = expectation.cells.len();
    let words = format!("{} of {all} cells", words.collect::<Vec<_>>().join(", "));
    // Names of cells are long, and break behind their commas.
    let breaking = |text: &str| tables::unbroken(&escape(text)).replace(',', ",<wbr>");
    let cell = |cell: &CellVerdict| format!("<li>{}: {}</li>", breaking(&cell.case), breaking(&cell.detail));
    let list: String = of(Some(false)).chain(of(None)).map(cell).collect();
    if list.is_empty() {
        return format!("<br><small>{words}</small>");
    }
    let open = if counts[1].0 + counts[2].0 <= CELLS_OPEN { " open" } else { "" };
    format!(
        "<details{open}><summary><small>{words}</small></summary><ul class=\"cells\">{list}</ul></details>"
    )
}

/// How many runs there are of each kind. `remarks_at` says where to read what is to be known of valid ones.
pub(crate) fn run_states(experiment: &Experiment, remarks_at: &str) -> String {
    let total =
        |f: fn(&crate::summary::CaseSummary) -> usize| experiment.summary.cases.iter().map(f).sum::<usize>();
    let (done, unexplained) = (total(|c| c.done), total(|c| c.unexplained));
    let (invalid, failed) = (total(|c| c.invalid), total(|c| c.failed));
    let all = total(crate::summary::CaseSummary::runs);
    let items: String = experiment.cases.iter().map(troubled_runs).collect();
    let remarks =
        experiment.runs().filter(|r| r.manifest.status == RunStatus::Done && !r.manifest.reasons.is_empty());
    let remarks = match remarks.count() {
        0 => String::new(),
        count => format!(" There is something to know of {count} of the valid runs: see {remarks_at}."),
    };
    let list = if items.is_empty() { String::new() } else { format!("<ul>{items}</ul>") };
    let unexplained = if unexplained > 0 { format!("{unexplained} unexplained, ") } else { String::new() };
    let excluded = if all > done { " Those not valid are in no median." } else { "" };
    format!(
        "<section class=\"runs\"><p><b>{}</b>: {done} valid, {unexplained}{invalid} invalid, {failed} failed.{excluded}{remarks}</p>{list}</section>",
        if all == 1 { "1 run".to_owned() } else { format!("{all} runs") },
    )
}

fn troubled_runs(case: &Case) -> String {
    let title = escape(&case.info.title);
    let state = |run: &RunManifest| {
        let reasons = escape(&run.reasons.join("; "));
        let chip = chip(run.status);
        (run.status != RunStatus::Done)
            .then(|| format!("<li>{chip} <span>{title}, repeat {}: {reasons}</span></li>", run.repeat))
    };
    let known: String = case.runs.iter().filter_map(|run| state(&run.manifest)).collect();
    let lost = case.lost.iter().map(|run| {
        let chip = chip(RunStatus::Failed);
        let why = run.damage.as_deref().unwrap_or("left no manifest; it was interrupted");
        format!("<li>{chip} <span>{title}, repeat {}: {}</span></li>", run.repeat, escape(why))
    });
    known + &lost.collect::<String>()
}

fn chip(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Done => "<span class=\"chip met\">✓ valid</span>",
        RunStatus::Unexplained => "<span class=\"chip open\">? unexplained</span>",
        RunStatus::Invalid => "<span class=\"chip missed\">! invalid</span>",
        RunStatus::Failed => "<span class=\"chip missed\">✗ failed</span>",
    }
}

fn overview(figures: &ExperimentFigures) -> String {
    let plain = |figure: &plot::Figure| format!("<figure>{}</figure>", figure.inline());
    let shares = figures.shares.as_ref().map_or(String::new(), |figure| {
        format!(
            "<figure>{}<figcaption>Streams of each case's representative run, the valid repeat with the median goodput. \
             Jain's index is of these streams.</figcaption></figure>",
            figure.inline()
        )
    });
    let flows = figures.flows.as_ref().map_or(String::new(), |figure| {
        format!("<figure>{}<figcaption>Medians over the valid repeats, of all streams of a flow together.</figcaption></figure>", figure.inline())
    });
    let others: String = figures.echo.iter().chain(&figures.avail_error).map(plain).collect();
    let together: String = figures.together.iter().map(|(_, figure)| plain(figure)).collect();
    let together =
        if together.is_empty() { together } else { format!("<div class=\"panels\">{together}</div>") };
    format!(
        "<section><h2>By case</h2><div class=\"pair\">\
         <figure>{}<figcaption>Each ring is one repeat; the bar, and the number, is their median. A cross is a run \
         that is not valid and counts nowhere.</figcaption></figure>\
         {flows}{shares}{others}</div>{together}</section>",
        figures.goodput.inline(),
    )
}

fn navigation(experiment: &Experiment, id: &str) -> String {
    let link = |(index, case): (usize, &Case)| {
        format!("<li><a href=\"#{id}c{}\">{}</a></li>", index + 1, escape(&case.info.title))
    };
    let links: String = experiment.cases.iter().enumerate().map(link).collect();
    format!(
        "<section><h2>Over time</h2><nav aria-label=\"Cases\"><ul>{links}</ul></nav>\
         <p class=\"note\">Shaded time is outside the window that metrics count. Long series are thinned for drawing: of \
         the samples in each 1/760 of the width (pale lines: 1/190) the first, the least, the greatest and the last are \
         kept, so no peak is lost. {FIGURES_HELP}</p></section>"
    )
}

fn cases(experiment: &Experiment, figures: &ExperimentFigures, id: &str) -> String {
    let all = experiment.cases.iter().zip(&figures.cases).enumerate();
    all.map(|(index, (c, f))| case(c, f, &format!("{id}c{}", index + 1))).collect()
}

fn case(case: &Case, figures: &CaseFigures, id: &str) -> String {
    let shown = case.representative.map_or_else(
        || "<p class=\"note\">No run of this case left anything to show.</p>".to_owned(),
        |index| format!("<p class=\"note\">{}</p>{}", run_line(case, index), run(&figures.runs[index])),
    );
    let shows = |index: &usize| !figures.runs[*index].panels.is_empty() || figures.runs[*index].has_trouble();
    let others = (0..case.runs.len()).filter(|index| Some(*index) != case.representative).filter(shows);
    let others = others.map(|index| {
        let line = run_line(case, index);
        format!("<details><summary>{line}</summary>{}</details>", run(&figures.runs[index]))
    });
    let others: String = others.collect();
    format!(
        "<section class=\"case\" id=\"{id}\"><h3>{}</h3>{shown}{others}</section>\n",
        escape(&case.info.title)
    )
}

fn run_line(case: &Case, index: usize) -> String {
    let run = &case.runs[index].manifest;
    let window = (run.window_end_us - run.window_start_us) as f64 / 1e6;
    let role = match (Some(index) == case.representative, run.status) {
        (true, RunStatus::Done) => " (the valid repeat with the median goodput)",
        (true, _) => " (there is no valid repeat)",
        _ => "",
    };
    let slower = if run.dilation.is_none() { String::new() } else { format!(", {}× slower", run.dilation) };
    format!("{} Repeat {}{role}, window {} s{slower}", chip(run.status), run.repeat, number(window))
}

pub(crate) fn run(figures: &RunFigures) -> String {
    let is_drawn = |panel: &&Panel| matches!(panel, Panel::Drawn { .. });
    // What has nothing to show stands last and leaves no hole.
    let (drawn, absent): (Vec<&Panel>, Vec<&Panel>) = figures.panels.iter().partition(is_drawn);
    let panels: String = drawn.into_iter().chain(absent).map(panel).collect();
    let errors = figures.errors.iter().map(|(stream, error)| format!("{stream} ended early: {error}"));
    let warnings = figures.notes.iter().filter(|note| note.level != "info");
    let warnings =
        warnings.map(|n| format!("{} s, {}: {}", number(n.time_us as f64 / 1e6), n.source, n.message));
    let troubles = errors.chain(warnings).chain(figures.problems.iter().cloned());
    let troubles: Vec<String> = troubles.map(|trouble| format!("<li>{}</li>", escape(&trouble))).collect();
    let troubles = match troubles.len() {
        0 => String::new(),
        1 | 2 => format!("<ul class=\"trouble\">{}</ul>", troubles.concat()),
        count => format!(
            "<details><summary>{count} warnings during this run</summary><ul class=\"trouble\">{}</ul></details>",
            troubles.concat()
        ),
    };
    format!("{troubles}<div class=\"panels\">{panels}</div>")
}

pub(crate) fn panel(panel: &Panel) -> String {
    match panel {
        Panel::Drawn { figure, .. } => format!("<figure>{}</figure>", figure.inline()),
        Panel::Absent { title, why } => {
            format!("<div class=\"absent\"><b>{}</b><br>{}</div>", escape(title), escape(why))
        }
    }
}
