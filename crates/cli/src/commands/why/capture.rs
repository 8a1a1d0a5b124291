//! A capture: the same causes and words, from less.

use super::{
    Args,
    page::{self, Judged},
    show,
};
use crate::{outcome::Outcome, output};
use longfat_analyze::{
    Settings,
    analysis::{Analysis, analyze},
    files::source,
    report::FlowReport,
    words::counted,
};
use longfat_why::{
    capture::{Direction, of_flow},
    sentence,
};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Flows told one by one.
const TOLD: usize = 20;

pub fn run(files: &[PathBuf], args: &Args) -> Outcome {
    crate::confined::reader(args.page.as_deref())?;
    let captures = files.iter().map(|path| source::open(path)).collect::<Result<Vec<_>, _>>()?;
    let settings = Settings { detailed: args.page.is_some(), ..Settings::default() };
    let analysis = analyze(captures, settings, |_| ())?;
    let found: Vec<Direction> = directions(&analysis, args);
    let text = if args.json { document(&found)? } else { text(&found, &analysis) };
    output::write_out(&text)?;
    let judged = found.iter().map(|one| Judged {
        who: who(one),
        verdict: &one.verdict,
        remedies: Vec::new(),
        course: one.course.clone(),
    });
    Ok(page::write(args, judged.collect(), "a capture", false)?)
}

fn who(direction: &Direction) -> String {
    format!("{} to {}", direction.from, direction.to)
}

fn directions(analysis: &Analysis, args: &Args) -> Vec<Direction> {
    analysis.flows.iter().flat_map(|flow| of_flow(flow, &args.assumed())).collect()
}

fn text(found: &[Direction], analysis: &Analysis) -> String {
    if found.is_empty() {
        let lacks = |flow: &&FlowReport| flow.directions.iter().any(|direction| direction.missing.is_some());
        let (flows, lacking) = (analysis.totals.flows, analysis.flows.iter().filter(lacks).count());
        let lacking = match lacking {
            0 => String::new(),
            some => format!(" Of {some} the capture lacks a direction, acknowledgements or data."),
        };
        return format!(
            "{}, none of which carries enough to say what holds it.{lacking} 'longfat analyze' shows all.\n",
            counted(flows, "flow")
        );
    }
    let parts: Vec<String> = found.iter().take(TOLD).map(of_one).collect();
    let left = found.len().saturating_sub(TOLD);
    let rest =
        if left > 0 { format!("\n{left} more, smaller ones (--json has them).\n") } else { String::new() };
    parts.join("\n") + &rest
}

fn of_one(direction: &Direction) -> String {
    show::Told { who: who(direction), verdict: &direction.verdict, remedies: Vec::new() }.text()
}

fn document(found: &[Direction]) -> anyhow::Result<String> {
    let flows: Vec<Value> = found
        .iter()
        .map(|one| {
            let verdict = &one.verdict;
            json!({
                "local": one.from,
                "remote": one.to,
                "sentence": sentence::of(&who(one), verdict),
                "elapsed_us": verdict.elapsed_us,
                "causes": verdict.causes,
                "figures": verdict.figures,
            })
        })
        .collect();
    Ok(format!("{}\n", serde_json::to_string_pretty(&json!({ "schema_version": 1, "connections": flows }))?))
}
