//! The analysis without the rest of longfat: for measuring it, and as an example of the crate.
//!
//!     cargo run --release -p longfat-analyze --example read -- analyze [--json] [--most-flows N] FILE…
//!
//! Takes the arguments of `longfat analyze` that `bench/analyze` uses.

use longfat_analyze::{Settings, analysis::analyze, files::source, summary};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut json, mut captures, mut settings) = (false, Vec::new(), Settings::default());
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "analyze");
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => json = true,
            "--most-flows" => {
                settings.most_flows = arguments.next().ok_or("--most-flows wants a number")?.parse()?;
            }
            file => captures.push(source::open(file.as_ref())?),
        }
    }
    let analysis = analyze(captures, settings, |_| {})?;
    if json {
        println!("{}", serde_json::to_string(&analysis)?);
    } else {
        print!("{}", summary::text(&analysis));
    }
    Ok(())
}
