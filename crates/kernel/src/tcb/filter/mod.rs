//! Filters as people write them: `dst 10.0.0.0/8 and cc cubic and rtt > 50ms`.
//!
//! ```text
//! filter  = term { ("and" | "or") term }, "and" binds tighter; "not" or "!" before a term; parentheses
//! term    = FIELD [OPERATOR] VALUE | "src" | "dst" | "host" ADDRESS[/LENGTH][:PORTS] | "sport" | "dport" | "port" PORTS
//!         | "ipv4" | "ipv6"
//! OPERATOR = = != < <= > >=, "=" when left out
//! PORTS   = 80 | 8000-8999
//! ```
//!
//! Pure: text in, a filter or an error with its place out; a connection in, yes or no out.

mod parse;
mod test;

use super::field::Field;
pub use crate::filter::FilterError;
use crate::filter::{self, Expression};
use crate::sockets::connection::Connection;
use std::str::FromStr;
use test::Test;

/// A filter; the empty text matches every connection.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Filter {
    expression: Option<Expression<Test>>,
}

impl Filter {
    /// Whether the connection is meant.
    pub fn matches(&self, connection: &Connection) -> bool {
        self.expression
            .as_ref()
            .is_none_or(|expression| expression.holds(&|test: &Test| test.matches(connection)))
    }

    /// Whether it has no condition, so that every connection is meant.
    pub fn is_empty(&self) -> bool {
        self.expression.is_none()
    }

    /// Whether it asks for a field: what costs extra is gathered only then.
    pub fn asks_for(&self, field: &str) -> bool {
        self.fields().any(|asked| asked.name == field)
    }

    /// Whether a filter can begin so: with a word of its language.
    pub fn begins_with(text: &str) -> bool {
        let text = text.trim_start();
        text.parse::<Filter>().map_or_else(|error| error.position > 0, |_| !text.is_empty())
    }

    fn fields(&self) -> impl Iterator<Item = &'static Field> {
        let tests = self.expression.as_ref().map(Expression::tests).unwrap_or_default();
        tests.into_iter().filter_map(Test::field)
    }

    /// Whether addresses, ports and namespace alone decide.
    pub fn is_about_addresses_only(&self) -> bool {
        self.fields().all(|asked| asked.name == "netns")
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Filter, FilterError> {
        filter::parse(text).map(|expression| Filter { expression })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockets::connection::{Process, State};
    use longfat_host::socket::TcpInfo;
    use proptest::prelude::*;

    fn connection() -> Connection {
        let info = TcpInfo {
            snd_cwnd_segments: 40,
            srtt_us: 60_000,
            snd_ssthresh_segments: 0x7fff_ffff,
            delivery_rate_bytes_per_s: 12_500_000,
            ..TcpInfo::default()
        };
        Connection {
            cc: Some("cubic".into()),
            info: Some(info),
            process: Some(Process { pid: 77, command: "curl".into() }),
            ..Connection::bare(
                "blue".into(),
                "192.168.1.2:40000".parse().unwrap(),
                "10.1.2.3:443".parse().unwrap(),
                State::ESTABLISHED,
            )
        }
    }

    fn matches(text: &str) -> bool {
        text.parse::<Filter>().unwrap_or_else(|error| panic!("{error}")).matches(&connection())
    }

    #[test]
    fn filters_that_fit_the_connection() {
        for text in [
            "",
            "dst 10.0.0.0/8 and cc cubic and rtt > 50ms",
            "dst 10.1.2.3:443",
            "dst 10.0.0.0/8:400-500",
            "host 192.168.1.2",
            "port 443 and not port 80",
            "dport 400-500 and sport >= 40000",
            "dport = :443",
            "cc cub* or cwnd 1",
            "process curl and pid 77",
            "state estab",
            "state != time-wait",
            "rate >= 100Mbit",
            "not (cwnd < 40 or cwnd > 40)",
            "!cc reno && ipv4",
            "cwnd 1 or cwnd 2 and cwnd 3 or cwnd = 40",
            "netns blue",
            "rtt 60ms",
            "limit != cwnd",
            "(((dst 10/8)))",
        ] {
            assert!(matches(text), "{text}");
        }
    }

    #[test]
    fn filters_that_do_not_fit_the_connection() {
        for text in [
            "dst 11.0.0.0/8",
            "src 10.0.0.0/8",
            "dst 10.1.2.3:80",
            "dst ::/0",
            "cc reno",
            "cc cubi",
            "rtt <= 50ms",
            "not cc cubic",
            "ipv6",
            "dport 400-442",
            "state listen",
            "rate < 100Mbit",
            "cwnd 40 and cwnd 41",
        ] {
            assert!(!matches(text), "{text}");
        }
    }

    #[test]
    fn what_is_absent_is_neither_less_nor_more_nor_equal() {
        for text in ["ssthresh > 0", "ssthresh < 10", "ssthresh = 5", "ssthresh != 5"] {
            assert!(!matches(text), "{text}");
        }
        assert!(matches("not ssthresh > 0"));
    }

    #[test]
    fn a_state_kept_by_a_wrapper_still_answers_to_its_own_name() {
        let kept = Connection { cc: Some("lfkeep_cubic".into()), ..connection() };
        assert!("cc cubic".parse::<Filter>().unwrap().matches(&kept));
        assert!("cc lfkeep_cubic".parse::<Filter>().unwrap().matches(&kept));
        assert!(!"cc bbr".parse::<Filter>().unwrap().matches(&kept));
    }

    fn error(text: &str) -> String {
        text.parse::<Filter>().unwrap_err().to_string()
    }

    #[test]
    fn errors_show_the_place_and_suggest_the_mend() {
        let shown = error("dst 10.0.0.0/8 and cwdn > 10");
        assert_eq!(
            shown,
            "filter, column 20: no field is called 'cwdn'; did you mean 'cwnd'?\n  \
             dst 10.0.0.0/8 and cwdn > 10\n  \
             \u{20}                  ^^^^"
        );
        for (text, part) in [
            ("rtt > 50", "has no unit"),
            ("rtt > 50parsec", "unknown unit"),
            ("cwnd > many", "a number"),
            ("cwnd >", "ends"),
            ("(cwnd > 1", "')'"),
            ("cwnd > 1)", "'('"),
            ("cwnd > 1 cc cubic", "'and' or 'or'"),
            ("dst 10.0.0.0/40", "at most 32"),
            ("dst example.org", "is no address"),
            ("dport 70000", "port"),
            ("dport 90-80", "ends before it begins"),
            ("state asleep", "established"),
            ("limit much", "sndbuf"),
            ("cc > cubic", "only '=' and '!='"),
            ("dst < 10.0.0.0/8", "only '=' and '!='"),
            ("and cc cubic", "begins"),
            ("cwnd = = 5", "value"),
        ] {
            assert!(error(text).contains(part), "{text}: {}", error(text));
        }
    }

    #[test]
    fn the_words_a_filter_begins_with_are_told_from_names_of_files() {
        for text in ["dst", "src", "host", "cc", "SPORT", "rtt > 50ms", "ipv4", "cc reno", "not", "(cc"] {
            assert!(Filter::begins_with(text), "{text}");
        }
        for text in ["", "before.json", "./dst", "/tmp/cc", "dst.json", "cwdn", "a b", "before and after"] {
            assert!(!Filter::begins_with(text), "{text}");
        }
    }

    #[test]
    fn what_costs_extra_is_known_from_the_filter() {
        let filter: Filter = "not (dst 10.0.0.0/8 or process curl)".parse().unwrap();
        assert!(filter.asks_for("process") && !filter.asks_for("pid") && !filter.is_about_addresses_only());
        assert!("dst 10.0.0.0/8 and sport 5".parse::<Filter>().unwrap().is_about_addresses_only());
    }

    fn words() -> impl Strategy<Value = String> {
        let word = prop::sample::select(vec![
            "and",
            "or",
            "not",
            "(",
            ")",
            "dst",
            "src",
            "host",
            "10.0.0.0/8",
            "[::1]:80",
            "cc",
            "cubic",
            "cwnd",
            ">",
            "<=",
            "!=",
            "=",
            "40",
            "rtt",
            "50ms",
            "state",
            "estab",
            "dport",
            "80-90",
            "rate",
            "1Gbit",
            "!",
            "ipv6",
            "port",
            ":",
            "/",
            "limit",
            "app",
            "é",
        ]);
        prop::collection::vec(word, 0..24).prop_map(|words| words.join(" "))
    }

    proptest! {
        #[test]
        fn any_text_is_a_filter_or_an_error_within_it(text in ".{0,60}") {
            match text.parse::<Filter>() {
                Ok(filter) => { filter.matches(&connection()); }
                Err(error) => prop_assert!(error.position <= text.len() && !error.to_string().is_empty()),
            }
        }

        #[test]
        fn any_row_of_words_is_a_filter_or_an_error_within_it(text in words()) {
            match text.parse::<Filter>() {
                Ok(filter) => {
                    let negated: Filter = format!("not ({text})").parse().unwrap_or_default();
                    if !text.trim().is_empty() {
                        prop_assert_ne!(filter.matches(&connection()), negated.matches(&connection()));
                    }
                }
                Err(error) => prop_assert!(error.position <= text.len() && !error.to_string().is_empty()),
            }
        }

        #[test]
        fn numbers_compare_as_numbers(cwnd in 0u32..1000, bound in 0u32..1000) {
            let info = TcpInfo { snd_cwnd_segments: cwnd, ..TcpInfo::default() };
            let one = Connection { info: Some(info), ..connection() };
            let holds = |text: String| text.parse::<Filter>().unwrap().matches(&one);
            prop_assert_eq!(holds(format!("cwnd < {bound}")), cwnd < bound);
            prop_assert_eq!(holds(format!("cwnd>={bound}")), cwnd >= bound);
            prop_assert_eq!(holds(format!("cwnd != {bound}")), cwnd != bound);
        }

        #[test]
        fn depth_is_bounded(depth in 0usize..5000) {
            let text = format!("{}cwnd 1{}", "(".repeat(depth), ")".repeat(depth));
            prop_assert_eq!(text.parse::<Filter>().is_ok(), depth <= filter::DEPTH_MAX);
            let text = format!("{}cwnd 1", "!".repeat(depth));
            prop_assert_eq!(text.parse::<Filter>().is_ok(), depth <= filter::DEPTH_MAX);
        }
    }
}
