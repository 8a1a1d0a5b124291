//! `longfat mobility status`.

use crate::outcome::Outcome;
use longfat_mobility::{announcement::Character, control};
use longfat_schema::units::Nanos;
use serde_json::Value;
use std::{fmt::Write as _, path::PathBuf};

/// What a running 'follow' or 'announce' knows and has done.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  longfat mobility status
  longfat mobility status --name announce --json
  longfat mobility status --metrics > \\
      /var/lib/node_exporter/longfat_mobility.prom")]
pub struct Args {
    /// Name of the process.
    #[arg(long, default_value = "follow", value_parser = super::process_name)]
    name: String,
    /// Control socket that is asked, in place of that of --name.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// As JSON, every counter included.
    #[arg(long)]
    json: bool,
    /// As Prometheus reads metrics.
    #[arg(long, conflicts_with = "json")]
    metrics: bool,
}

pub fn run(args: &Args) -> Outcome {
    let status = control::ask(&super::socket(args.socket.as_deref(), &args.name), "status")?;
    if args.metrics {
        print!("{}", metrics(&status));
        return Ok(());
    }
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

/// What of a status is a number: counters with `_total`, all else as it stands now, a router's with its name.
fn metrics(status: &Value) -> String {
    let role = status["role"].as_str().unwrap_or_default();
    let mut text = String::new();
    let counts = if role == "announce" { &["sequence", "datagrams"][..] } else { &[] };
    for (name, value) in status.as_object().into_iter().flatten() {
        match value.as_u64() {
            Some(value) if counts.contains(&name.as_str()) => {
                push(&mut text, role, name, "counter", &[("", value)])
            }
            Some(value) if name != "version" && name != "pid" => {
                push(&mut text, role, name, "gauge", &[("", value)])
            }
            _ => {}
        }
    }
    for (name, value) in status["counters"].as_object().into_iter().flatten() {
        push(&mut text, role, name, "counter", &[("", value.as_u64().unwrap_or(0))]);
    }
    let routers = || status["routers"].as_array().into_iter().flatten();
    for (name, kind) in [("changes", "counter"), ("heard_ago_us", "gauge")] {
        let label = |router: &Value| format!("{{router={}}}", router["router"]);
        let labelled: Vec<(String, u64)> =
            routers().map(|router| (label(router), router[name].as_u64().unwrap_or(0))).collect();
        let values: Vec<(&str, u64)> =
            labelled.iter().map(|(label, value)| (label.as_str(), *value)).collect();
        push(&mut text, role, &format!("router_{name}"), kind, &values);
    }
    text
}

fn push(text: &mut String, role: &str, name: &str, kind: &str, values: &[(&str, u64)]) {
    let total = if kind == "counter" { "_total" } else { "" };
    let metric = format!("longfat_mobility_{role}_{name}{total}");
    if !values.is_empty() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# TYPE {metric} {kind}");
    }
    for (label, value) in values {
        let _ = writeln!(text, "{metric}{label} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_metrics_each_with_its_kind() {
        let follow = serde_json::json!({
            "version": 1, "role": "follow", "pid": 7, "connections": 3, "listening": ["lan0"],
            "routers": [{ "router": "bus-7", "changes": 2, "heard_ago_us": 40 }],
            "counters": { "news": 5 },
        });
        let wanted = "# TYPE longfat_mobility_follow_connections gauge\n\
                      longfat_mobility_follow_connections 3\n\
                      # TYPE longfat_mobility_follow_news_total counter\n\
                      longfat_mobility_follow_news_total 5\n\
                      # TYPE longfat_mobility_follow_router_changes_total counter\n\
                      longfat_mobility_follow_router_changes_total{router=\"bus-7\"} 2\n\
                      # TYPE longfat_mobility_follow_router_heard_ago_us gauge\n\
                      longfat_mobility_follow_router_heard_ago_us{router=\"bus-7\"} 40\n";
        assert_eq!(metrics(&follow), wanted);
        let announce = serde_json::json!({ "role": "announce", "sequence": 4, "interfaces": 1 });
        let said = metrics(&announce);
        assert!(
            said.contains("announce_sequence_total 4\n") && said.contains("announce_interfaces 1\n"),
            "{said}"
        );
    }
}
