//! Which packet marks and routing tables a relay has: those asked for, or the first that nobody uses.

use super::{
    FAMILIES, RULE_PRIORITY,
    commands::{ip, ip_shown},
    has_ipv6,
};
use crate::{Error, InterceptPlan, Result, plan::marks::Marks};
use std::ops::Range;

/// First mark and table tried, and how many after it: "lf" in ASCII.
pub(super) const FIRST_NUMBER: u32 = 0x6c66;
const TRIES: u32 = 32;

/// What is taken: by routing rules, and by other relays (also by dead ones whose refusals stand: they are cleaned by
/// their numbers).
struct Taken {
    rules: String,
    relays: Vec<(String, Marks)>,
}

/// The routing rules of a family, with the numbers of tables rather than names; none of a family that this host lacks.
pub(super) fn routing_rules(family: &str) -> Result<String> {
    let lacks_it = || family == FAMILIES[1] && !has_ipv6();
    match ip(&["-N", family, "rule", "show"]) {
        Err(_) if lacks_it() => Ok(String::new()),
        listed => Ok(listed?),
    }
}

/// The numbers asked for, or the first that no rule, route or relay uses, with all that a relay may come to use.
pub(super) fn choose(plan: &InterceptPlan, relays: Vec<(String, Marks)>) -> Result<Marks> {
    let rules: Result<String> = FAMILIES.into_iter().map(routing_rules).collect();
    let taken = Taken { rules: rules?, relays };
    if let Some(mark) = plan.mark {
        refuse_taken("routing mark", mark, "--mark", taken.mark_user(mark))?;
    }
    if let Some(table) = plan.table {
        refuse_taken("routing table", table, "--table", taken.table_user(table))?;
    }
    let candidates = || (0..TRIES).map(|try_| FIRST_NUMBER + Marks::MARKS * try_);
    let mark = plan.mark.or_else(|| candidates().find(|mark| taken.mark_user(*mark).is_none()));
    let table = plan.table.or_else(|| candidates().find(|table| taken.table_user(*table).is_none()));
    match (mark, table) {
        (Some(mark), Some(table)) => Ok(Marks { mark, own_mark: mark.wrapping_add(1), table }),
        _ => {
            Err(Error::Plan("no free routing mark or table was found; name one with --mark, --table".into()))
        }
    }
}

fn refuse_taken(what: &'static str, number: u32, option: &'static str, by: Option<String>) -> Result<()> {
    by.map_or(Ok(()), |by| Err(Error::NumberTaken { what, number, by, option }))
}

impl Taken {
    /// The rule that looks at one of a relay's marks, or the relay that has one.
    fn mark_user(&self, mark: u32) -> Option<String> {
        let uses = |line: &str| RuleMark::of(line).is_some_and(|rule| rule.clashes(mark));
        self.rule(uses).or_else(|| self.relay(|other| other.mark.abs_diff(mark) < Marks::MARKS))
    }

    /// The rule, route or relay that uses one of a relay's tables.
    fn table_user(&self, table: u32) -> Option<String> {
        let uses =
            |line: &str| rule_table(line).is_some_and(|found| found.wrapping_sub(table) < Marks::TABLES);
        let rule =
            self.rule(uses).or_else(|| self.relay(|other| other.table.abs_diff(table) < Marks::TABLES));
        rule.or_else(|| first_route(table..table.saturating_add(Marks::TABLES)))
    }

    fn rule(&self, uses: impl Fn(&str) -> bool) -> Option<String> {
        self.rules.lines().find(|line| uses(line)).map(|line| line.trim().to_owned())
    }

    fn relay(&self, overlaps: impl Fn(&Marks) -> bool) -> Option<String> {
        let (name, _) = self.relays.iter().find(|(_, numbers)| overlaps(numbers))?;
        Some(format!("nft table inet {name}"))
    }
}

/// A route in one of these tables, found by halving: mostly there is none.
fn first_route(tables: Range<u32>) -> Option<String> {
    let shows: String = tables.clone().map(|table| format!("route show table {table}\n")).collect();
    let shown = FAMILIES.map(|family| ip_shown(family, &shows)).concat();
    let route = shown.lines().next()?;
    match tables.len() {
        0 | 1 => Some(format!("{} table {}", route.trim(), tables.start)),
        count => {
            let middle = tables.start + count as u32 / 2;
            first_route(tables.start..middle).or_else(|| first_route(middle..tables.end))
        }
    }
}

/// The mark and the table of a rule that a relay of these numbers made.
pub(super) fn made(line: &str, numbers: &Marks) -> Option<(u32, u32)> {
    let (mark, table) = (RuleMark::of(line)?.value, rule_table(line)?);
    let whole = format!("{RULE_PRIORITY}: from all fwmark {mark:#x} lookup {table}");
    let is_whole = line.split_whitespace().eq(whole.split(' '));
    (is_whole && numbers.table_of(mark) == Some(table)).then_some((mark, table))
}

/// The marks a routing rule looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RuleMark {
    priority: u32,
    value: u32,
    mask: u32,
    /// Whether the rule takes all marks but these (`not from all fwmark …`).
    others: bool,
}

impl RuleMark {
    fn of(line: &str) -> Option<RuleMark> {
        let (priority, rest) = line.trim_start().split_once(':')?;
        let mark = rest.split("fwmark ").nth(1)?.split(' ').next()?.trim();
        let (value, mask) = mark.split_once('/').unwrap_or((mark, "0xffffffff"));
        let number = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        Some(RuleMark {
            priority: priority.parse().ok()?,
            value: number(value)?,
            mask: number(mask)?,
            others: rest.trim_start().starts_with("not "),
        })
    }

    fn takes(self, mark: u32) -> bool {
        ((mark ^ self.value) & self.mask == 0) != self.others
    }

    /// Whether a relay of this mark and somebody's rule are in each other's way: his packets would be held, the relay's
    /// own packets would go elsewhere, or, as his rule comes first, so would those that the relay takes. What takes
    /// packets without a mark, too, says nothing of the relay's.
    fn clashes(self, mark: u32) -> bool {
        let comes_first = RULE_PRIORITY.parse().is_ok_and(|own: u32| self.priority <= own);
        let takes_one = || (0..Marks::MARKS).any(|above| self.takes(mark.wrapping_add(above)));
        let is_one = self.value.wrapping_sub(mark) < Marks::MARKS;
        let diverts = !self.takes(0) && (self.takes(mark.wrapping_add(1)) || comes_first && takes_one());
        is_one || diverts
    }
}

/// The table a rule leads to.
fn rule_table(line: &str) -> Option<u32> {
    line.split("lookup ").nth(1)?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "0:\tfrom all lookup 255\n10:\tfrom all fwmark 0x6c66 lookup 27750\n\
                         11:\tfrom all fwmark 0x10/0xff lookup 1000 suppress_prefixlength 0\n";

    fn numbers(mark: u32, table: u32) -> Marks {
        Marks { mark, own_mark: mark + 1, table }
    }

    #[test]
    fn a_mark_or_table_in_use_is_recognised_with_and_without_a_mask() {
        let taken = Taken { rules: RULES.into(), relays: Vec::new() };
        let mark = |mark| taken.mark_user(mark).is_some();
        assert!(mark(0x6c66) && mark(0x6c66 - Marks::MARKS + 1) && mark(0x10));
        assert!(!mark(0x6c67) && !mark(0x6c66 - Marks::MARKS));
        let table = |table| taken.rule(|line| rule_table(line) == Some(table)).is_some();
        assert!(table(27750) && table(1000) && !table(10));
    }

    #[test]
    fn a_mask_clashes_where_it_diverts_what_is_the_relays() {
        let clashes =
            |rule: &str| Taken { rules: rule.into(), relays: Vec::new() }.mark_user(0x6c66).is_some();
        // The relay's own packets carry 0x6c67.
        assert!(clashes("100:\tfrom all fwmark 0x1/0x1 lookup 100\n"));
        assert!(!clashes("100:\tfrom all fwmark 0x8/0x8 lookup 100\n"));
        // Those it takes, or holds, carry others: the first rule that matches counts.
        assert!(clashes("9:\tfrom all fwmark 0x8/0x8 lookup 100\n"));
        assert!(!clashes("9:\tfrom all fwmark 0x200/0xf00 lookup 2004\n"));
        // What is for all traffic is for the relay's, too.
        assert!(!clashes("9:\tnot from all fwmark 0xca6c lookup 51820\n"));
        assert!(!clashes("9:\tfrom all fwmark 0/0x10000 lookup 100\n"));
        assert!(clashes("9:\tnot from all fwmark 0/0x4000 lookup 100\n"));
    }

    #[test]
    fn a_range_that_another_relays_covers_from_below_or_from_above_is_in_use() {
        let taken = Taken { rules: String::new(), relays: vec![("longfat_x".into(), numbers(0x9000, 5000))] };
        let mark = |mark: u32| taken.mark_user(mark).is_some();
        assert!(mark(0x9000) && mark(0x9000 + Marks::MARKS - 1) && mark(0x9000 - Marks::MARKS + 1));
        assert!(!mark(0x9000 + Marks::MARKS) && !mark(0x9000 - Marks::MARKS));
        assert_eq!(taken.table_user(5000 + Marks::TABLES - 1).unwrap(), "nft table inet longfat_x");
    }

    #[test]
    fn only_rules_of_its_own_mark_and_table_are_a_relays() {
        let numbers = numbers(0x100, 3000);
        let made = |line| made(line, &numbers);
        assert_eq!(made("10:\tfrom all fwmark 0x100 lookup 3000"), Some((0x100, 3000)));
        assert_eq!(made("10:\tfrom all fwmark 0x102 lookup 3001 "), Some((0x102, 3001)));
        let last = format!("10:\tfrom all fwmark {:#x} lookup 3480", 0x100 + Marks::MARKS - 1);
        assert_eq!(made(&last), Some((0x100 + Marks::MARKS - 1, 3480)));
        for other in [
            "10:\tfrom all fwmark 0x101 lookup 3000",
            "10:\tfrom all fwmark 0x102 lookup 254",
            "10:\tfrom all fwmark 0x102 lookup 3002",
            "11:\tfrom all fwmark 0x102 lookup 3001",
            "10:\tfrom all fwmark 0x102/0xfff lookup 3001",
            "10:\tfrom all fwmark 0x102 iif lan lookup 3001",
            "10:\tfrom all fwmark 0x2e2 lookup 3481",
            "10:\tfrom all fwmark 0xff lookup 2999",
        ] {
            assert_eq!(made(other), None, "{other}");
        }
    }
}
