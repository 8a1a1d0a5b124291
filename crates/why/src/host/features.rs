//! What TCP does on a host: options, congestion control, habits.

use super::{Advice, Asked, Ground, of_sysctl};
use crate::words::{duration, rate, size};
use longfat_path_plan::Forecast;

pub(super) fn advice(asked: &Asked) -> Vec<Advice> {
    [
        sack(asked),
        timestamps(asked),
        metrics(asked),
        ecn(asked),
        after_idle(asked),
        probing(asked),
        low_water(asked),
        congestion_control(asked),
        default_qdisc(asked),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A sysctl with this value.
fn where_it_is(asked: &Asked, key: &str, bad: &str) -> Option<String> {
    let value = asked.sysctl(key)?;
    (value == bad).then(|| value.to_owned())
}

fn us(nanos: longfat_schema::units::Nanos) -> String {
    duration(nanos.0 / 1000)
}

fn sack(asked: &Asked) -> Option<Advice> {
    let key = "net.ipv4.tcp_sack";
    let value = where_it_is(asked, key, "0")?;
    let costs = format!(
        "one loss is repaired each round trip: {} of them after slow start overruns the path by its pipe",
        asked.path.window.pipe_segments
    );
    Some(of_sysctl(key, &value, costs, "1", Ground::Book("RFC 2018, RFC 6675")))
}

fn timestamps(asked: &Asked) -> Option<Advice> {
    let key = "net.ipv4.tcp_timestamps";
    let value = where_it_is(asked, key, "0")?;
    let wrap = us(asked.path.window.sequence_wrap);
    let costs =
        format!("sequence numbers come round after {wrap}, and nothing tells old segments from new then");
    Some(of_sysctl(key, &value, costs, "1", Ground::Book("RFC 7323, section 5")))
}

fn metrics(asked: &Asked) -> Option<Advice> {
    let key = "net.ipv4.tcp_no_metrics_save";
    let value = where_it_is(asked, key, "0")?;
    let recovery = cubic(asked).map_or(String::new(), |cubic| {
        format!("; from half of the pipe, growing back takes up to {}", us(cubic.recovery))
    });
    let costs =
        format!("a connection's slow start ends where a bad one before it ended (ip tcp_metrics){recovery}");
    Some(of_sysctl(key, &value, costs, "1", Ground::Book("fasterdata.es.net, Linux host tuning")))
}

fn ecn(asked: &Asked) -> Option<Advice> {
    let key = "net.ipv4.tcp_ecn";
    let value = where_it_is(asked, key, "0")?;
    let costs =
        "queues can only drop, not mark, packets of connections that others begin with ECN".to_owned();
    Some(of_sysctl(key, &value, costs, "2", Ground::Book("RFC 3168, RFC 8087")))
}

fn cubic<'a>(asked: &'a Asked) -> Option<&'a Forecast> {
    asked.path.forecasts.iter().find(|forecast| forecast.cc == "cubic")
}

fn after_idle(asked: &Asked) -> Option<Advice> {
    let key = "net.ipv4.tcp_slow_start_after_idle";
    let value = where_it_is(asked, key, "1")?;
    let costs =
        format!("a pause of a second costs up to {} of slow start again", us(cubic(asked)?.slow_start));
    Some(of_sysctl(key, &value, costs, "0", Ground::Book("RFC 5681, section 4.1; fasterdata.es.net")))
}

fn probing(asked: &Asked) -> Option<Advice> {
    let key = "net.ipv4.tcp_mtu_probing";
    let value = where_it_is(asked, key, "0")?;
    let costs = "a path that drops full packets and the ICMP messages about them stops a connection for good";
    Some(of_sysctl(key, &value, costs.to_owned(), "1", Ground::Book("RFC 4821; fasterdata.es.net")))
}

/// A writer may be woken this late: two ticks of a kernel with HZ=250.
const WOKEN_LATE_S: f64 = 0.008;

fn low_water(asked: &Asked) -> Option<Advice> {
    let key = "net.ipv4.tcp_notsent_lowat";
    let mark = asked.number(key)?;
    let lasts_s = mark as f64 * 8.0 / asked.path.goodput_max_bps as f64;
    let costs = format!(
        "{} unsent last {}: a program that is woken later than that leaves the path idle",
        size(mark),
        duration((lasts_s * 1e6) as u64)
    );
    let ground = Ground::Book("Documentation/networking/ip-sysctl.rst, tcp_notsent_lowat");
    let advice = of_sysctl(key, asked.sysctl(key)?, costs, "4294967295", ground);
    (mark < u64::from(u32::MAX) && lasts_s < WOKEN_LATE_S).then_some(advice)
}

fn congestion_control(asked: &Asked) -> Option<Advice> {
    let key = "net.ipv4.tcp_congestion_control";
    let name = asked.sysctl(key)?;
    let forecasts = &asked.path.forecasts;
    let named = |name: &str| forecasts.iter().find(|one| one.cc == name.trim_start_matches("lf_"));
    let now = named(name)?;
    let there = asked.sysctl("net.ipv4.tcp_available_congestion_control").unwrap_or_default();
    // One loss a round trip late matters where growing back takes long.
    let better = there.split_whitespace().filter_map(|name| Some((name, named(name)?)));
    let (best, quickest) = better.min_by_key(|(_, forecast)| forecast.recovery)?;
    let share = 1.0 - now.share;
    let costs = format!(
        "one loss costs {} until the window is full again ({} here: {}); without loss it gets {}",
        us(now.recovery),
        best,
        us(quickest.recovery),
        rate(now.goodput.0 as f64)
    );
    let is_worth = Asked::is_worth(share) || now.recovery.0 > 2 * quickest.recovery.0;
    let advice =
        of_sysctl(key, name, costs, best, Ground::Book("RFC 9438, section 5; RFC 3649; 'longfat path'"));
    is_worth.then_some(Advice { share: Some(share), ..advice })
}

fn default_qdisc(asked: &Asked) -> Option<Advice> {
    let key = "net.core.default_qdisc";
    let value = where_it_is(asked, key, "pfifo_fast")?;
    let costs =
        "bursts of a whole window wait in one line with everything else; nothing is paced by the interface";
    Some(of_sysctl(key, &value, costs.to_owned(), "fq", Ground::Book("fasterdata.es.net, fair queuing")))
}
