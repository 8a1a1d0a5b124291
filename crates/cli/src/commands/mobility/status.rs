//! `longfat mobility status`.

use crate::outcome::Outcome;
use longfat_mobility::{announcement::Character, control};
use longfat_schema::units::Nanos;
use serde_json::Value;

/// What a running 'follow' or 'announce' knows and has done.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat mobility status
  longfat mobility status --name announce --json")]
pub struct Args {
    /// Name of the process.
    #[arg(long, default_value = "follow")]
    name: String,
    /// As JSON, every counter included.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Outcome {
    let status = control::ask(&control::socket_of(&args.name), "status")?;
    if args.json {
        println!("{status}");
        return Ok(());
    }
    match status["role"].as_str() {
        Some("announce") => show_announce(&status),
        _ => show_follow(&status),
    }
    Ok(())
}

fn character(value: &Value) -> String {
    let character: Option<Character> = serde_json::from_value(value.clone()).ok();
    character.map_or_else(|| "unknown".into(), |character| character.to_string())
}

fn show_announce(status: &Value) {
    println!(
        "router {} (process {}) uses {}: {}; {} changes, {} datagrams sent on {} interfaces",
        status["router"],
        status["pid"],
        status["link"],
        character(&status["character"]),
        status["sequence"],
        status["datagrams"],
        status["interfaces"],
    );
}

fn show_follow(status: &Value) {
    for router in status["routers"].as_array().into_iter().flatten() {
        let ago = Nanos(router["heard_ago_us"].as_u64().unwrap_or(0) * 1000);
        println!(
            "router {} uses {}: {}; {} changes, heard {ago} ago",
            router["router"],
            router["link"],
            character(&router["character"]),
            router["changes"],
        );
    }
    let counters = &status["counters"];
    println!(
        "process {}: {} connections over announced links, {} wait for what they sent before a change; {} routes raised, \
         {} left alone",
        status["pid"],
        status["connections"],
        status["waiting"],
        status["routes_raised"],
        status["routes_left_alone"],
    );
    for (name, count) in counters.as_object().into_iter().flatten() {
        println!("  {name:<12} {count}");
    }
}
