//! The smallest program around the library.
//!
//!     cargo run --release -p longfat-relay --example relay -- lan after-server [20ms]
//!     cargo run --release -p longfat-relay --example relay -- lan adopt "adopt_after = '1MB'"
//!     cargo run --release -p longfat-relay --example relay -- 0.0.0.0:8080 192.0.2.1:80
//!
//! The first takes every connection that comes in on the interface `lan` (as root, on a router) and, with a time, keeps
//! queues as short as that. The second one steps into those that have carried a megabyte. The third one takes those of
//! its clients. It runs until it is killed; the next one removes what it left.

use longfat_relay::{
    Accept, ConnectionSummary, InterceptPlan, Observer, QueueSpec, Ready, RelayPlan, spec::RelaySpec,
};
use std::sync::atomic::AtomicBool;

/// Says when it is ready, what became of each connection, and what it warns of.
struct Say;

impl Observer for Say {
    fn ready(&self, ready: &Ready) {
        println!("ready: {}", ready.name);
    }
    fn closed(&self, summary: &ConnectionSummary) {
        println!("closed: {} to {}, {:?}", summary.client, summary.server, summary.ended);
    }
    fn wants_summaries(&self) -> bool {
        true
    }
    fn warning(&self, message: &str) {
        eprintln!("relay: {message}");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let plan = match words.as_slice() {
        [interface, accept @ ("early" | "after-server" | "end-to-end"), target @ ..] => {
            let intercept =
                InterceptPlan { interfaces: vec![(*interface).into()], ..InterceptPlan::default() };
            let mut plan = RelayPlan::transparent("example", intercept);
            plan.defaults_mut().accept = match *accept {
                "early" => Accept::Early,
                "after-server" => Accept::AfterServer,
                _ => Accept::EndToEnd,
            };
            if let Some(target) = target.first() {
                plan.defaults_mut().queue = QueueSpec::from_words(&format!("target = \"{target}\""))?.plan();
            }
            plan
        }
        [interface, "adopt", keys @ ..] => {
            let keys = keys.join("\n");
            let text = format!(
                "[intercept]\ninterfaces = '{interface}'\n[defaults]\naccept = 'end-to-end'\n{keys}\n"
            );
            // Several run beside each other.
            RelayPlan { control: None, ..RelaySpec::parse(&text)?.resolve()? }
        }
        [listen, to] => RelayPlan::explicit("example", listen.parse()?, vec![to.parse()?]),
        _ => return Err(
            "give an interface and 'early', 'after-server', 'end-to-end', or 'adopt' and keys of the file, or an address to listen on and one to go to"
                .into(),
        ),
    };
    longfat_relay::run(&plan, &AtomicBool::new(false), &Say)?;
    Ok(())
}
