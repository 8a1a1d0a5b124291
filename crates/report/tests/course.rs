//! The page of why connections are slow.
#![allow(clippy::unwrap_used)]

use longfat_report::course::{CauseShare, CauseTotal, Connection, MOST_DRAWN, Mend, Page, Stretch, html};

const HOSTILE: &str = "<script>alert('\"1\"')</script>";

fn stretch(second: u32, causes: &[(&str, f64)]) -> Stretch {
    Stretch {
        from_s: second.into(),
        to_s: f64::from(second) + 1.0,
        causes: causes.iter().map(|(name, share)| ((*name).to_owned(), *share)).collect(),
        rate_bps: 18e6 + f64::from(second) * 1e5,
        rtt_us: (second != 3).then_some(40_000.0),
        cwnd_bytes: Some(95_000),
        window_bytes: Some(512 << 10),
        flight_bytes: 90_000,
    }
}

fn cause(name: &str, share: f64, least_bps: Option<f64>) -> CauseShare {
    CauseShare {
        name: name.to_owned(),
        share,
        basis: "kernel".to_owned(),
        evidence: format!("evidence of {name}"),
        without: least_bps.map(|bps| (format!("Without this, {} Mbit/s", bps / 1e6), bps)),
    }
}

fn connection(who: &str) -> Connection {
    Connection {
        who: who.to_owned(),
        sentence: format!("{who} gets 18.8 Mbit/s: for 70 % of the time it waits"),
        causes: vec![
            cause("program_idle", 0.6, None),
            cause("receive_window", 0.3, Some(38e6)),
            cause("send_buffer", 0.1, Some(50e6)),
        ],
        remedies: vec![Mend {
            what: "the other end: a larger receive buffer.".to_owned(),
            command: Some("sysctl -w net.ipv4.tcp_rmem='4096 131072 <4194304>'".to_owned()),
            note: "costs memory".to_owned(),
        }],
        stretches: (0..8).map(|s| stretch(s, &[("receive_window", 0.25), ("send_buffer", 0.75)])).collect(),
    }
}

fn page(connections: Vec<Connection>) -> Page {
    let by_cause = vec![CauseTotal {
        name: "receive_window".to_owned(),
        connections: connections.len(),
        share: 0.3,
        rate_bps: 18.8e6,
    }];
    let (title, about) = ("why dst 192.0.2.7".to_owned(), "watched for 8s".to_owned());
    Page { title, about, renewed_s: None, by_cause, connections }
}

#[test]
fn a_connection_has_its_sentence_its_course_its_ranked_causes_and_its_remedy() {
    let html = html(&page(vec![connection("rsync[4711] to 192.0.2.7:22")]));
    // For looking at it.
    if let Ok(path) = std::env::var("LONGFAT_WHY_HTML") {
        std::fs::write(path, &html).unwrap();
    }
    let place = |text: &str| html.find(text).unwrap_or_else(|| panic!("no '{text}'"));
    assert!(
        place("gets 18.8 Mbit/s: for 70\u{a0}% of") < place("Time by cause, %"),
        "the sentence is on top"
    );
    for title in ["Payload, Mbit/s", "Round trip, ms", "Windows, kB"] {
        assert!(place("Time by cause, %") < place(title), "{title}");
    }
    // By the rate without them; what cannot be priced is last, however long it took.
    assert!(place("evidence of send_buffer") < place("evidence of receive_window"));
    assert!(place("evidence of receive_window") < place("evidence of program_idle"));
    assert!(html.contains(
        "<pre tabindex=\"0\"><code>sysctl -w net.ipv4.tcp_rmem=&#39;4096 131072 &lt;4194304&gt;&#39;"
    ));
    assert_eq!(html.matches(" data-x0=\"0\" data-x1=\"8\"").count(), 4, "one time axis for all figures");
    assert_eq!(html.matches("data-label=\"send_buffer\" data-value=\"75.0\"").count(), 8);
    assert!(!html.contains("<h2>By cause</h2>") && !html.contains("http-equiv"));
}

#[test]
fn many_connections_are_told_by_cause_first_and_a_bounded_number_is_drawn() {
    let many = (0..MOST_DRAWN + 5).map(|n| connection(&format!("process[{n}]"))).collect();
    let html = html(&page(many));
    assert!(html.find("<h2>By cause</h2>").unwrap() < html.find("id=\"c1\"").unwrap());
    assert_eq!(html.matches("<section class=\"case\"").count(), MOST_DRAWN);
    assert!(html.contains("5 more are in the table above and not drawn"));
    assert!(html.len() < 1_500_000, "{} bytes", html.len());
}

#[test]
fn a_page_that_is_renewed_says_so_and_what_holds_throughout_is_one_band() {
    let mut one = connection("a");
    one.stretches = (0..200).map(|s| stretch(s, &[("receive_window", 1.0)])).collect();
    let html = html(&Page { renewed_s: Some(10), ..page(vec![one]) });
    assert!(
        html.contains("<meta http-equiv=\"refresh\" content=\"10\">") && html.contains("renewed every 10 s")
    );
    assert_eq!(html.matches("class=\"band b0\" data-label=").count(), 1);
}

#[test]
fn nothing_to_judge_and_nothing_to_draw_are_said() {
    assert!(html(&page(Vec::new())).contains("No connection could be judged"));
    let mut one = connection("a");
    one.stretches.clear();
    assert!(html(&page(vec![one])).contains("There is no course to draw"));
}

#[test]
fn names_of_processes_and_files_cannot_break_out_and_nothing_is_fetched() {
    let mut one = connection(HOSTILE);
    one.causes[0].evidence = HOSTILE.to_owned();
    one.remedies[0].command = Some(HOSTILE.to_owned());
    one.stretches[0].causes[0].0 = HOSTILE.to_owned();
    let mut page = page(vec![one.clone(), one]);
    page.title = HOSTILE.to_owned();
    page.by_cause[0].name = HOSTILE.to_owned();
    let html = html(&page);
    assert_eq!(html.matches("<script").count(), 1, "the page's own");
    let plain = html.replace("http://www.w3.org/2000/svg", "");
    for forbidden in ["http:", "https:", "src=", "@import", "url(", "NaN", ">inf"] {
        assert!(!plain.contains(forbidden), "{forbidden}");
    }
}
