//! What this build carries over loopback: `pace SECONDS`. A server and its client in one process; prints the payload of
//! one stream in each direction, in bit/s, and whole transfers of one byte in a second, one after the other.
//!
//! bench/transfer/paired.py runs two builds of it in turn.

use longfat_transfer::{Amount, SendOptions, ServeOptions, Server, TransferPlan, send};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let span = Duration::from_secs_f64(std::env::args().nth(1).ok_or("usage: pace SECONDS")?.parse()?);
    let server = Server::bind(serve_options())?;
    let to = server.address().to_string();
    std::thread::spawn(move || server.run(&()).map(drop));
    for (name, reverse) in [("up_bps", false), ("down_bps", true)] {
        let plan = TransferPlan {
            amount: Amount::DurationUs(span.as_micros() as u64),
            reverse,
            ..Default::default()
        };
        let outcome = send(&send_options(&to, plan), &())?;
        println!("{name} {}", outcome.flows.iter().map(|flow| flow.goodput_bps).sum::<u64>());
    }
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < span {
        send(&send_options(&to, TransferPlan { amount: Amount::Bytes(1), ..Default::default() }), &())?;
        count += 1;
    }
    println!("transfers_per_s {}", f64::from(count) / began.elapsed().as_secs_f64());
    Ok(())
}

fn serve_options() -> ServeOptions {
    let (data_ports, limits, key, samples, stop) = Default::default();
    let listen = ([127, 0, 0, 1], 0).into();
    ServeOptions {
        listen,
        once: false,
        timeout: Duration::from_secs(10),
        data_ports,
        limits,
        key,
        samples,
        stop,
    }
}

fn send_options(to: &str, plan: TransferPlan) -> SendOptions {
    let (key, bind, start, samples, stop) = Default::default();
    SendOptions { to: to.to_owned(), plan, key, bind, start, interval: Duration::from_secs(1), samples, stop }
}
