//! From what was written to what runs: defaults and checks.

use super::{
    ChangeSpec, DirectionName, DirectionSpec, DisciplineName, LinkSpec, LossSpec, QueueSpec, SpecError,
    followed,
};
use crate::plan::{
    ChangePlan, CodelPlan, DirectionPlan, DisciplinePlan, LinePlan, LinkPlan, LossPlan, QueuePlan, RedPlan,
    SPAN_MAX_NS,
};
use longfat_schema::units::{Nanos, Rate, Size};
use std::fmt::Display;

const MTU_BYTES: u32 = 1500;
const LATE_LIMIT_NS: u64 = 300_000;
const PAUSE_LIMIT: f64 = 0.02;
const SAMPLE_INTERVAL_NS: u64 = 1_000_000;
const MAX_DELAY_NS: u64 = 600_000_000_000;
const MIN_LIMIT_PACKETS: u64 = 64;

type Result<T> = std::result::Result<T, SpecError>;

/// Says what is wrong with a field of one table of one link.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    link: &'a str,
    table: &'a str,
}

impl Site<'_> {
    pub(super) fn refuse<T>(self, field: &str, value: impl Display, why: &str, mend: &str) -> Result<T> {
        let field = if self.table.is_empty() { field.to_owned() } else { format!("{}.{field}", self.table) };
        let (link, value) = (self.link.to_owned(), value.to_string());
        Err(SpecError { link, field, value, why: why.to_owned(), mend: mend.to_owned() })
    }

    fn check(self, good: bool, field: &str, value: impl Display, why: &str, mend: &str) -> Result<()> {
        if good { Ok(()) } else { self.refuse(field, value, why, mend) }
    }

    fn probability(self, field: &str, value: f64) -> Result<f64> {
        let good = (0.0..=1.0).contains(&value);
        self.check(good, field, value, "is no probability", "write a number from 0 to 1")?;
        Ok(value)
    }

    fn delay(self, field: &str, value: Nanos) -> Result<u64> {
        self.check(
            value.0 <= MAX_DELAY_NS,
            field,
            value,
            "is longer than ten minutes",
            "write a shorter one",
        )?;
        Ok(value.0)
    }
}

pub(super) fn link(spec: &LinkSpec, name: &str, default_seed: u64) -> Result<LinkPlan> {
    let site = Site { link: name, table: "" };
    let mtu = spec.mtu.unwrap_or(MTU_BYTES);
    site.check((68..=65_535).contains(&mtu), "mtu", mtu, "is no IP packet size", "write 68 to 65535 bytes")?;
    let sample_ns = spec.sample_interval.map_or(SAMPLE_INTERVAL_NS, |interval| interval.0);
    let shown = Nanos(sample_ns);
    site.check(sample_ns >= 100_000, "sample_interval", shown, "is too short", "write at least '100us'")?;
    let coalesce = spec.coalesce.unwrap_or_default();
    let short = coalesce.0 <= 1_000_000;
    site.check(short, "coalesce", coalesce, "is longer than any reader expects", "write at most '1ms'")?;
    let pause_limit = spec.pause_limit.unwrap_or(PAUSE_LIMIT);
    let share = (0.0..=1.0).contains(&pause_limit);
    site.check(share, "pause_limit", pause_limit, "is no share of the time", "write a number from 0 to 1")?;
    let forward = as_direction(spec);
    let backward = overridden(&forward, spec.backward.as_ref());
    let forward = followed::on_average(site, forward)?;
    let backward = followed::on_average(Site { link: name, table: "backward" }, backward)?;
    let round_trip_ns =
        forward.delay.unwrap_or_default().0.saturating_add(backward.delay.unwrap_or_default().0);
    let side = |table, which| Side { site: Site { link: name, table }, mtu, round_trip_ns, which };
    let changes = spec.schedule.as_deref().unwrap_or_default();
    Ok(LinkPlan {
        name: name.to_owned(),
        mtu_bytes: mtu,
        seed: spec.seed.unwrap_or(default_seed),
        late_limit_ns: spec.late_limit_p99.map_or(LATE_LIMIT_NS, |limit| limit.0),
        pause_limit,
        sample_interval_ns: sample_ns,
        coalesce_ns: coalesce.0,
        forward: followed::direction(side("", DirectionName::Forward), &forward, changes)?,
        backward: followed::direction(side("backward", DirectionName::Backward), &backward, changes)?,
    })
}

fn as_direction(spec: &LinkSpec) -> DirectionSpec {
    DirectionSpec {
        rate: spec.rate,
        delay: spec.delay,
        jitter: spec.jitter,
        reorder: spec.reorder,
        loss: spec.loss.clone(),
        queue: spec.queue.clone(),
        overhead: spec.overhead,
        trace: spec.trace.clone(),
    }
}

fn overridden(base: &DirectionSpec, by: Option<&DirectionSpec>) -> DirectionSpec {
    let Some(by) = by else { return base.clone() };
    DirectionSpec {
        rate: by.rate.or(base.rate),
        delay: by.delay.or(base.delay),
        jitter: by.jitter.or(base.jitter),
        reorder: by.reorder.or(base.reorder),
        loss: by.loss.clone().or_else(|| base.loss.clone()),
        queue: by.queue.clone().or_else(|| base.queue.clone()),
        overhead: by.overhead.or(base.overhead),
        // Where it says the rate, too, another rate replaces the whole trace.
        trace: by
            .trace
            .clone()
            .or_else(|| base.trace.clone().filter(|trace| by.rate.is_none() || !followed::gives_rate(trace))),
    }
}

/// One direction being resolved.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    site: Site<'a>,
    mtu: u32,
    round_trip_ns: u64,
    which: DirectionName,
}

impl<'a> Side<'a> {
    /// The place in the specification that messages speak of.
    pub(super) fn site(self) -> Site<'a> {
        self.site
    }

    pub(super) fn direction(self, spec: &DirectionSpec, changes: &[ChangeSpec]) -> Result<DirectionPlan> {
        let site = self.site;
        let rate_bps = spec.rate.and_then(|rate| rate.0).map(|Rate(bps)| bps);
        let line = LinePlan {
            rate_bps,
            delay_ns: site.delay("delay", spec.delay.unwrap_or_default())?,
            jitter_ns: site.delay("jitter", spec.jitter.unwrap_or_default())?,
            loss: loss(site, spec.loss.as_ref())?,
        };
        let overhead = spec.overhead.unwrap_or_default();
        site.check(overhead.0 <= 1500, "overhead", overhead, "is no framing", "write at most '1500B'")?;
        let queue = self.queue(
            &spec.queue.clone().unwrap_or_default(),
            self.default_limit_bytes(rate_bps),
            rate_bps,
        )?;
        let schedule = self.schedule(&line, &queue, changes)?;
        let (reorder, overhead_bytes) = (spec.reorder.unwrap_or(false), overhead.0 as u32);
        Ok(DirectionPlan {
            line,
            queue,
            reorder,
            overhead_bytes,
            schedule,
            repeats_ns: None,
            opportunities: None,
        })
    }

    /// One bandwidth-delay product of the round trip.
    fn product_bytes(self, rate_bps: Option<u64>) -> u64 {
        let product = u128::from(rate_bps.unwrap_or(0)) * u128::from(self.round_trip_ns) / 8_000_000_000;
        u64::try_from(product).unwrap_or(u64::MAX)
    }

    fn default_limit_bytes(self, rate_bps: Option<u64>) -> u64 {
        self.product_bytes(rate_bps).max(MIN_LIMIT_PACKETS * u64::from(self.mtu))
    }

    fn share_bytes(self, spec: &QueueSpec, share: f64, rate_bps: Option<u64>) -> Result<u64> {
        let (site, name) = (self.site, "queue.round_trips");
        let sound = (0.0..=100.0).contains(&share);
        site.check(sound, name, share, "is no number of round trips", "write one from 0 to 100, as 0.5")?;
        site.check(
            spec.limit.is_none(),
            name,
            share,
            "says the same as queue.limit",
            "remove one of the two",
        )?;
        let known = rate_bps.is_some() && self.round_trip_ns > 0;
        site.check(
            known,
            name,
            share,
            "is a share of rate and delay, and one is missing",
            "write queue.limit",
        )?;
        let product_bytes = self.product_bytes(rate_bps).max(1) as f64;
        let limit_bytes = (product_bytes * share).round() as u64;
        let least = (f64::from(self.mtu) / product_bytes * 1000.0).ceil() / 1000.0;
        let why = format!("is {} on this path, which holds no packet of MTU size", Size(limit_bytes));
        let mend = format!("write {least} at least, or queue.limit");
        site.check(limit_bytes >= u64::from(self.mtu), name, share, &why, &mend)?;
        Ok(limit_bytes)
    }

    fn queue(self, spec: &QueueSpec, default_limit_bytes: u64, rate_bps: Option<u64>) -> Result<QueuePlan> {
        let limit_bytes = match spec.round_trips {
            Some(share) => self.share_bytes(spec, share, rate_bps)?,
            None => spec.limit.map_or(default_limit_bytes, |limit| limit.0),
        };
        let (least, shown) = (u64::from(self.mtu), Size(limit_bytes));
        let mend = format!("write at least '{least}B'");
        self.site.check(limit_bytes >= least, "queue.limit", shown, "holds no packet of MTU size", &mend)?;
        let discipline = spec.discipline.unwrap_or_default();
        self.refuse_strangers(spec, discipline)?;
        let ecn = spec.ecn.unwrap_or(false);
        let discipline = match discipline {
            DisciplineName::Droptail => {
                DisciplinePlan::Droptail { mark_threshold_bytes: spec.mark_threshold.map(|size| size.0) }
            }
            DisciplineName::Red => DisciplinePlan::Red { red: self.red(spec, limit_bytes)?, ecn },
            DisciplineName::Codel => DisciplinePlan::Codel(self.codel(spec, ecn)?),
        };
        Ok(QueuePlan { limit_bytes, discipline })
    }

    /// A parameter of another discipline would be silently without effect: an error.
    fn refuse_strangers(self, spec: &QueueSpec, discipline: DisciplineName) -> Result<()> {
        use DisciplineName::{Codel, Droptail, Red};
        let shown = |present: bool| present.then_some("(given)");
        let owned: [(&str, Option<&str>, &[DisciplineName]); 9] = [
            ("ecn", shown(spec.ecn == Some(true)), &[Red, Codel]),
            ("mark_threshold", shown(spec.mark_threshold.is_some()), &[Droptail]),
            ("min_threshold", shown(spec.min_threshold.is_some()), &[Red]),
            ("max_threshold", shown(spec.max_threshold.is_some()), &[Red]),
            ("max_probability", shown(spec.max_probability.is_some()), &[Red]),
            ("weight", shown(spec.weight.is_some()), &[Red]),
            ("gentle", shown(spec.gentle.is_some()), &[Red]),
            ("target", shown(spec.target.is_some()), &[Codel]),
            ("interval", shown(spec.interval.is_some()), &[Codel]),
        ];
        for (name, given, owners) in owned {
            if let (Some(given), false) = (given, owners.contains(&discipline)) {
                let names: Vec<String> = owners.iter().map(ToString::to_string).collect();
                let why = format!("belongs to discipline {}", names.join(" or "));
                let mend = match name {
                    "ecn" => "choose that discipline, or mark beyond a step with mark_threshold".to_owned(),
                    _ => format!("choose that discipline or remove it (this one is {discipline})"),
                };
                return self.site.refuse(&format!("queue.{name}"), given, &why, &mend);
            }
        }
        Ok(())
    }

    fn red(self, spec: &QueueSpec, limit_bytes: u64) -> Result<RedPlan> {
        let site = self.site;
        let max = spec.max_threshold.unwrap_or(Size(limit_bytes / 4));
        let min = spec.min_threshold.unwrap_or(Size(max.0 / 3));
        let ordered = min < max && max.0 <= limit_bytes;
        let mend = "write min_threshold < max_threshold <= limit";
        site.check(
            ordered,
            "queue.max_threshold",
            max,
            "does not lie between min_threshold and limit",
            mend,
        )?;
        let max_probability =
            site.probability("queue.max_probability", spec.max_probability.unwrap_or(0.1))?;
        let weight = site.probability("queue.weight", spec.weight.unwrap_or(0.002))?;
        site.check(weight > 0.0, "queue.weight", weight, "never moves the average", "write such as 0.002")?;
        Ok(RedPlan {
            min_threshold_bytes: min.0,
            max_threshold_bytes: max.0,
            max_probability,
            weight,
            gentle: spec.gentle.unwrap_or(true),
        })
    }

    fn codel(self, spec: &QueueSpec, ecn: bool) -> Result<CodelPlan> {
        let target = spec.target.unwrap_or(Nanos(5_000_000));
        let interval = spec.interval.unwrap_or(Nanos(100_000_000));
        let mend = "write target < interval, as '5ms' and '100ms'";
        let ordered = target.0 > 0 && target < interval;
        self.site.check(ordered, "queue.target", target, "is not between 0 and interval", mend)?;
        Ok(CodelPlan { target_ns: target.0, interval_ns: interval.0, ecn })
    }

    /// This direction's changes, each with the whole line that holds from then on.
    fn schedule(self, line: &LinePlan, queue: &QueuePlan, specs: &[ChangeSpec]) -> Result<Vec<ChangePlan>> {
        let (mut line, mut limit_bytes) = (line.clone(), queue.limit_bytes);
        let mut plans: Vec<ChangePlan> = Vec::new();
        for (number, spec) in specs.iter().enumerate() {
            let table = format!("schedule[{number}]");
            let side = Side { site: Site { table: &table, ..self.site }, ..self };
            side.check_change(spec, number.checked_sub(1).map_or(0, |before| specs[before].at.0))?;
            if spec.direction.is_some_and(|only| only != self.which) {
                continue;
            }
            side.change_line(&mut line, spec)?;
            let queue =
                spec.queue.as_ref().map(|queue| side.queue(queue, limit_bytes, line.rate_bps)).transpose()?;
            limit_bytes = queue.as_ref().map_or(limit_bytes, |queue| queue.limit_bytes);
            plans.push(ChangePlan { at_ns: spec.at.0, line: line.clone(), queue });
        }
        Ok(plans)
    }

    fn check_change(self, spec: &ChangeSpec, after_ns: u64) -> Result<()> {
        let in_order = spec.at.0 >= after_ns;
        self.site.check(in_order, "at", spec.at, "is before the change above it", "order them by time")?;
        let mend = format!("write {} at most", Nanos(SPAN_MAX_NS));
        self.site.check(spec.at.0 <= SPAN_MAX_NS, "at", spec.at, "is later than a month", &mend)?;
        let says_something = spec.rate.is_some()
            || spec.delay.is_some()
            || spec.jitter.is_some()
            || spec.loss.is_some()
            || spec.queue.is_some();
        let mend = "add rate, delay, jitter, loss or queue";
        self.site.check(says_something, "at", spec.at, "changes nothing", mend)
    }

    fn change_line(self, line: &mut LinePlan, spec: &ChangeSpec) -> Result<()> {
        if let Some(rate) = spec.rate {
            line.rate_bps = rate.0.map(|Rate(bps)| bps);
        }
        if let Some(delay) = spec.delay {
            line.delay_ns = self.site.delay("delay", delay)?;
        }
        if let Some(jitter) = spec.jitter {
            line.jitter_ns = self.site.delay("jitter", jitter)?;
        }
        if spec.loss.is_some() {
            line.loss = loss(self.site, spec.loss.as_ref())?;
        }
        Ok(())
    }
}

fn loss(site: Site<'_>, spec: Option<&LossSpec>) -> Result<LossPlan> {
    match spec {
        None => Ok(LossPlan::NONE),
        Some(LossSpec::Probability(value)) => {
            Ok(LossPlan::Bernoulli { probability: site.probability("loss", *value)? })
        }
        Some(LossSpec::Bursts(bursts)) => Ok(LossPlan::GilbertElliott {
            to_bad: site.probability("loss.to_bad", bursts.to_bad)?,
            to_good: site.probability("loss.to_good", bursts.to_good)?,
            loss_bad: site.probability("loss.loss_bad", bursts.loss_bad.unwrap_or(1.0))?,
            loss_good: site.probability("loss.loss_good", bursts.loss_good.unwrap_or(0.0))?,
        }),
    }
}
