use super::*;

/// 10 Gbit/s and 90 ms, with the kernel's defaults.
fn long_fat(settings: &[(&str, &str)], counts: &[(&str, f64)]) -> Vec<Advice> {
    let path = path("10Gbit".parse().unwrap(), "90ms".parse().unwrap()).unwrap();
    let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    advice(&path, &settings, &counts.iter().map(|(key, count)| ((*key).to_owned(), *count)).collect())
}

fn one(settings: &[(&str, &str)], counts: &[(&str, f64)]) -> Advice {
    let mut found = long_fat(settings, counts);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn six_megabytes_of_receive_buffer_carry_half_a_gigabit_over_90_ms() {
    let found = one(&[("sysctl net.ipv4.tcp_rmem", "4096\t131072\t12582912")], &[]);
    assert_eq!(found.setting, "sysctl net.ipv4.tcp_rmem");
    assert!(found.costs.contains("6.0 MiB carries 559 Mbit/s of 9.65 Gbit/s"), "{}", found.costs);
    assert!((found.share.unwrap() - 0.942).abs() < 0.001 && found.costs_more_than(DEAR), "{found:?}");
    let mend = found.mend.unwrap();
    assert!(mend.starts_with("sysctl -w net.ipv4.tcp_rmem='4096 131072 "), "{mend}");
}

#[test]
fn what_the_path_plan_sets_costs_nothing() {
    let path = path("10Gbit".parse().unwrap(), "90ms".parse().unwrap()).unwrap();
    let planned = path.sysctls.iter().map(|plan| (format!("sysctl {}", plan.key), plan.value.clone()));
    let found = advice(&path, &planned.collect(), &Counts::new());
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn every_mend_of_a_sysctl_is_one_that_is_not_asked_for_again() {
    let bad = [
        ("net.ipv4.tcp_rmem", "4096 131072 6291456"),
        ("net.ipv4.tcp_wmem", "4096 16384 4194304"),
        ("net.ipv4.tcp_mem", "10000 20000 30000"),
        ("net.core.rmem_max", "212992"),
        ("net.core.wmem_max", "212992"),
        ("net.ipv4.tcp_window_scaling", "0"),
        ("net.ipv4.tcp_sack", "0"),
        ("net.ipv4.tcp_timestamps", "0"),
        ("net.ipv4.tcp_no_metrics_save", "0"),
        ("net.ipv4.tcp_ecn", "0"),
        ("net.ipv4.tcp_slow_start_after_idle", "1"),
        ("net.ipv4.tcp_mtu_probing", "0"),
        ("net.ipv4.tcp_notsent_lowat", "16384"),
        ("net.core.default_qdisc", "pfifo_fast"),
    ];
    for (key, value) in bad {
        let advice = one(&[(&format!("sysctl {key}"), value)], &[]);
        let (name, better) = advice.mend.as_ref().unwrap()[10..].split_once('=').unwrap();
        assert_eq!(name, key);
        let left = long_fat(&[(&format!("sysctl {key}"), better.trim_matches('\''))], &[]);
        assert!(left.is_empty(), "{advice:?}, and then {left:?}");
    }
}

#[test]
fn one_connection_is_advised_no_more_than_tcp_can_announce_and_all_no_more_than_memory_has() {
    let path = path("10Gbit".parse().unwrap(), "2s".parse().unwrap()).unwrap();
    assert_eq!((path.window.each_bytes(), path.window.flows_min()), (65_535 << 14, 9));
    let counts = Counts::from([("memory bytes".to_owned(), 24e9)]);
    let mut settings: Settings = [
        ("sysctl net.ipv4.tcp_rmem", "4096 131072 6291456"),
        ("sysctl net.ipv4.tcp_wmem", "4096 16384 4194304"),
        ("sysctl net.ipv4.tcp_mem", "10000 20000 30000"),
        ("sysctl net.core.rmem_max", "212992"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    let found = advice(&path, &settings, &counts);
    assert_eq!(found.len(), 4, "{found:?}");
    let rmem = found.iter().find(|one| one.setting.ends_with("tcp_rmem")).unwrap();
    assert!(rmem.costs.contains("3.0 MiB carries 12.6 Mbit/s of 4.29 Gbit/s"), "{}", rmem.costs);
    for one in &found {
        let better = one.mend.as_ref().unwrap().split_once('=').unwrap().1.trim_matches('\'').to_owned();
        if one.setting.ends_with("tcp_mem") {
            let last: f64 = better.rsplit(' ').next().unwrap().parse().unwrap();
            assert!(last * 4096.0 <= 12e9 && one.costs.contains("memory allows no more"), "{one:?}");
        }
        settings.insert(one.setting.clone(), better);
    }
    let again = advice(&path, &settings, &counts);
    assert!(again.is_empty(), "{again:?}");
}

#[test]
fn buffers_that_programs_ask_for_cost_only_those() {
    let found = one(&[("sysctl net.core.rmem_max", "212992")], &[]);
    assert!(found.only.is_some() && !found.costs_more_than(DEAR), "{found:?}");
}

#[test]
fn what_was_counted_is_called_measured() {
    let settings = [("sysctl net.netfilter.nf_conntrack_max", "1000")];
    assert!(long_fat(&settings, &[("conntrack entries", 100.0)]).is_empty());
    let found = one(&settings, &[("conntrack entries", 950.0)]);
    assert!(matches!(found.ground, Ground::Measured(_)), "{found:?}");
    let found = one(&[("clocksource", "acpi_pm")], &[("clock read ns", 1500.0)]);
    assert!(found.costs.contains("% of a processor"), "{found:?}");
    assert!(long_fat(&[("clocksource", "tsc")], &[("clock read ns", 25.0)]).is_empty());
}

#[test]
fn a_rate_that_a_queueing_discipline_holds_is_priced() {
    let found = one(&[("link eth0 mtu", "9000"), ("qdisc eth0", "tbf rate=1000000000")], &[]);
    assert!((found.share.unwrap() - 0.9).abs() < 1e-9 && found.costs_more_than(DEAR), "{found:?}");
}

#[test]
fn interfaces_without_offloads_with_short_rings_and_one_queue_are_told_by_name() {
    let settings = [
        ("link eth0 mtu", "9000"),
        ("offload eth0 tcp-segmentation-offload", "off"),
        ("ring eth0 rx", "256"),
        ("rps eth0 rx-0", "00,00000000"),
    ];
    let found = long_fat(&settings, &[("ring eth0 rx most", 4096.0), ("processors", 4.0)]);
    let mends: Vec<_> = found.iter().filter_map(|advice| advice.mend.clone()).collect();
    assert_eq!(mends.len(), 3, "{found:?}");
    assert!(mends.contains(&"ethtool -G eth0 rx 4096".to_owned()), "{mends:?}");
    assert!(mends.contains(&"ethtool -K eth0 tso on".to_owned()), "{mends:?}");
    assert!(mends.contains(&"echo f > /sys/class/net/eth0/queues/rx-0/rps_cpus".to_owned()), "{mends:?}");
}

#[test]
fn on_a_short_slow_path_the_kernels_defaults_cost_no_rate() {
    let path = path("10Mbit".parse().unwrap(), "10ms".parse().unwrap()).unwrap();
    let settings =
        [("net.ipv4.tcp_rmem", "4096 131072 6291456"), ("net.ipv4.tcp_wmem", "4096 16384 4194304")];
    let settings =
        settings.iter().map(|(key, value)| (format!("sysctl {key}"), (*value).to_owned())).collect();
    assert!(advice(&path, &settings, &Counts::new()).iter().all(|one| one.share.is_none()));
}
