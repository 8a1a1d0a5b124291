//! How many cases a property test tries.

use proptest::prelude::ProptestConfig;

/// As many as `PROPTEST_CASES` says, which `ProptestConfig::with_cases` would not ask; else these.
#[allow(clippy::expect_used)]
pub fn cases(usual: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES");
    let cases = asked.map_or(usual, |cases| cases.parse().expect("PROPTEST_CASES is a number"));
    ProptestConfig { cases, ..ProptestConfig::default() }
}
