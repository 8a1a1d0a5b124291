//! The smallest server: `serve_transfers ADDRESS:PORT`. Prints 'ready ADDRESS:PORT' and serves until it is killed.

use longfat_transfer::{ServeOptions, Server};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listen = std::env::args().nth(1).ok_or("usage: serve_transfers ADDRESS:PORT")?.parse()?;
    let timeout = Duration::from_secs(10);
    let (data_ports, limits, key, samples, stop) = Default::default();
    let options = ServeOptions { listen, once: false, timeout, data_ports, limits, key, samples, stop };
    let server = Server::bind(options)?;
    println!("ready {}", server.address());
    server.run(&())?;
    Ok(())
}
