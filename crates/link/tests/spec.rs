//! What people write about a link: read, defaulted, refused with the mend.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use longfat_link::{
    LinkPlan, LinkSpec,
    plan::{DisciplinePlan, LossPlan},
};

fn resolve(toml: &str) -> Result<LinkPlan, String> {
    let spec = LinkSpec::from_toml(toml).map_err(|error| error.to_string())?;
    spec.resolve("path", 7).map_err(|error| error.to_string())
}

#[test]
fn a_long_fat_path_is_read_with_both_directions() {
    let plan = resolve(
        r#"
        rate = "1Gbit"
        delay = "14.2ms"
        mtu = 1500
        queue = { discipline = "droptail", limit = "3550KB" }
        loss = 0.0
        jitter = "0ms"
        late_limit_p99 = "300us"
        backward = { rate = "100Mbit" }
        schedule = [ { at = "10s", rate = "100Mbit" }, { at = "20s", delay = "20ms", direction = "forward" } ]
        "#,
    )
    .unwrap();
    assert_eq!(
        (plan.forward.line.rate_bps, plan.backward.line.rate_bps),
        (Some(1_000_000_000), Some(100_000_000))
    );
    assert_eq!((plan.forward.line.delay_ns, plan.backward.line.delay_ns), (14_200_000, 14_200_000));
    assert_eq!(plan.forward.queue.limit_bytes, 3_550_000);
    assert_eq!((plan.forward.schedule.len(), plan.backward.schedule.len()), (2, 1));
    assert_eq!(
        plan.forward.schedule[1].line.rate_bps,
        Some(100_000_000),
        "a change keeps what it does not name"
    );
    assert_eq!((plan.seed, plan.late_limit_ns, plan.sample_interval_ns), (7, 300_000, 1_000_000));
    assert_eq!(plan.pause_limit, 0.02);
    assert!(!plan.is_cable());
}

#[test]
fn nothing_written_is_a_plain_cable() {
    assert!(resolve("").unwrap().is_cable());
    assert!(resolve("mtu = 9000").unwrap().is_cable());
    assert!(!resolve("backward = { delay = '1ms' }").unwrap().is_cable());
}

#[test]
fn the_default_queue_is_one_bandwidth_delay_product_of_the_round_trip() {
    let plan =
        resolve("rate = '1Gbit'\ndelay = '10ms'\nbackward = { rate = '1Mbit', delay = '20ms' }").unwrap();
    assert_eq!(plan.forward.queue.limit_bytes, 3_750_000);
    assert_eq!(plan.backward.queue.limit_bytes, 64 * 1500, "but at least 64 packets");
}

#[test]
fn a_plan_read_back_is_the_same_plan() {
    let toml =
        "rate = '1Gbit'\nloss = { to_bad = 0.01, to_good = 0.5 }\nqueue = { discipline = 'red', ecn = true }";
    let plan = resolve(toml).unwrap();
    assert_eq!(LinkPlan::from_json(&plan.to_json().unwrap()).unwrap(), plan);
    assert!(matches!(plan.forward.line.loss, LossPlan::GilbertElliott { loss_bad: 1.0, loss_good: 0.0, .. }));
    assert!(matches!(plan.forward.queue.discipline, DisciplinePlan::Red { ecn: true, .. }));
    let codel = resolve("queue = { discipline = 'codel' }").unwrap();
    assert_eq!(LinkPlan::from_json(&codel.to_json().unwrap()).unwrap(), codel);
}

#[test]
fn a_wrong_value_names_the_field_the_value_and_the_mend() {
    let cases = [
        ("loss = 2.0", "loss = 2 is no probability; write a number from 0 to 1"),
        ("pause_limit = 2.0", "pause_limit = 2 is no share of the time; write a number from 0 to 1"),
        ("loss = { to_bad = nan, to_good = 0.1 }", "loss.to_bad = NaN is no probability"),
        ("loss = 'some'", "loss must be a probability such as 0.001"),
        ("rate = '1000'", "has no unit"),
        ("rate = 1000", "expected a string"),
        ("speed = '1Gbit'", "unknown field `speed`"),
        ("mtu = 20", "mtu = 20 is no IP packet size; write 68 to 65535 bytes"),
        ("delay = '3h'", "delay = 10800s is longer than ten minutes"),
        ("backward = { delay = '3h' }", "backward.delay = 10800s"),
        (
            "queue = { limit = '100B' }",
            "queue.limit = 100B holds no packet of MTU size; write at least '1500B'",
        ),
        ("queue = { discipline = 'fifo' }", "unknown variant `fifo`"),
        ("queue = { target = '5ms' }", "queue.target = (given) belongs to discipline codel"),
        (
            "queue = { ecn = true }",
            "queue.ecn = (given) belongs to discipline red or codel; choose that discipline, or mark beyond a step with mark_threshold",
        ),
        (
            "queue = { discipline = 'red', min_threshold = '2MB' }",
            "write min_threshold < max_threshold <= limit",
        ),
        ("queue = { discipline = 'red', weight = 0.0 }", "queue.weight = 0 never moves the average"),
        (
            "queue = { discipline = 'codel', target = '200ms' }",
            "queue.target = 200ms is not between 0 and interval",
        ),
        ("sample_interval = '1us'", "sample_interval = 1us is too short; write at least '100us'"),
        ("coalesce = '10ms'", "coalesce = 10ms"),
        ("overhead = '9KB'", "overhead = 9KB"),
        ("schedule = [{ rate = '1Mbit' }]", "missing field `at`"),
        (
            "schedule = [{ at = '1s' }]",
            "schedule[0].at = 1s changes nothing; add rate, delay, jitter, loss or queue",
        ),
        (
            "schedule = [{ at = '2s', loss = 0.1 }, { at = '1s', loss = 0.0 }]",
            "schedule[1].at = 1s is before",
        ),
    ];
    for (toml, expected) in cases {
        let message = resolve(toml).expect_err(toml);
        assert!(message.contains(expected), "{toml}: {message}");
    }
}

#[test]
fn unlimited_can_be_said_where_another_value_would_hold() {
    let plan = resolve("rate = '1Mbit'\nbackward = { rate = 'unlimited' }").unwrap();
    assert_eq!(plan.backward.line.rate_bps, None);
}
