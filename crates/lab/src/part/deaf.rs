//! Followers that heard nothing of their router, and why, from what they answer to 'status'. Pure.

use crate::plan::FollowPlan;
use serde_json::Value;

/// Why a follower that heard nothing of its router did not; none when it heard something. A host elsewhere that began
/// to follow late may have missed the few datagrams that it is told with.
pub(super) fn why(follow: &FollowPlan, far: bool, status: &Value) -> Option<String> {
    let routers = || status["routers"].as_array().into_iter().flatten();
    if routers().any(|router| router["router"] == follow.name.as_str()) {
        return None;
    }
    let counter = |name: &str| status["counters"][name].as_u64().unwrap_or(0);
    let (name, router) = (&follow.name, &follow.router);
    // What is off time bears this run's key, which nobody else has.
    let reasons = [
        (
            "off_time",
            format!("{{}} announcements were off by more than 30 s; set its clock, or that of '{router}'"),
        ),
        (
            "malformed",
            "{} announcements were of another version; run one version of longfat on both".to_owned(),
        ),
        ("old", "{} announcements were older than what was heard before".to_owned()),
        ("forged", "{} announcements were damaged on the way".to_owned()),
        (
            "foreign_key",
            format!("{{}} announcements were of others, with another key, and none was of '{router}'"),
        ),
    ];
    let heard = reasons.iter().filter(|(reason, _)| counter(reason) > 0);
    let heard: Vec<String> =
        heard.map(|(reason, text)| text.replace("{}", &counter(reason).to_string())).collect();
    if heard.is_empty() && far && follow.start_us > 0 {
        return None;
    }
    let said = if heard.is_empty() { silence(follow, far, status) } else { heard.join("; ") };
    Some(format!("heard nothing of router '{name}': {said}"))
}

/// Why no announcement may have come.
fn silence(follow: &FollowPlan, far: bool, status: &Value) -> String {
    let router = &follow.router;
    if far {
        return format!("no announcement came; let UDP from '{router}' through, and see the route to here");
    }
    let listening = status["listening"].as_array().into_iter().flatten().filter_map(Value::as_str);
    format!(
        "no announcement came on {}; '{router}' announces on {}: see that this is its interface towards here, and let \
         multicast through",
        listening.collect::<Vec<_>>().join(", "),
        follow.interfaces.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::{plans, tests_support::SMALL},
        spec::Experiment,
    };
    use serde_json::json;

    fn follow() -> FollowPlan {
        let more = "[follows.move]\nrouter = \"r\"\nlink = \"path\"\nnodes = [\"a\"]\nfar = [\"b\"]\n";
        let experiment = Experiment::read(&format!("{SMALL}{more}"), &[]).unwrap();
        plans(&experiment).unwrap().remove(0).follows.remove(0)
    }

    fn status(counters: &Value) -> Value {
        json!({ "routers": [], "listening": ["eth0", "wlan0"], "counters": counters })
    }

    #[test]
    fn a_follower_that_heard_its_router_is_not_deaf_and_one_that_heard_another_is() {
        let mut heard = status(&json!({ "off_time": 3 }));
        heard["routers"] = json!([{ "router": "move" }]);
        assert_eq!(why(&follow(), false, &heard), None);
        heard["routers"] = json!([{ "router": "bus" }]);
        assert!(why(&follow(), false, &heard).is_some());
    }

    #[test]
    fn a_deaf_follower_says_what_it_did_not_believe_or_where_it_listened() {
        let said = |far, counters: Value| why(&follow(), far, &status(&counters)).unwrap();
        assert_eq!(
            said(false, json!({ "off_time": 12, "foreign_key": 0 })),
            "heard nothing of router 'move': 12 announcements were off by more than 30 s; set its clock, or that of 'r'"
        );
        assert!(
            said(true, json!({ "foreign_key": 7, "off_time": 2 }))
                .contains("; 7 announcements were of others")
        );
        let silence = said(false, json!({}));
        assert!(silence.contains("no announcement came on eth0, wlan0; 'r' announces on lan"), "{silence}");
        assert!(said(true, json!({})).contains("let UDP from 'r' through"));
    }

    #[test]
    fn a_host_elsewhere_that_follows_late_may_miss_what_it_is_told() {
        let late = FollowPlan { start_us: 1, ..follow() };
        assert_eq!(why(&late, true, &status(&json!({}))), None);
        assert!(why(&late, true, &status(&json!({ "off_time": 1 }))).is_some());
        assert!(why(&late, false, &status(&json!({}))).is_some());
    }
}
