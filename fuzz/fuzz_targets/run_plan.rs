//! Any bytes as a run's plan.json, as a stranger's pack holds it: read or refused; what 'lab rerun' would take leads
//! nowhere but into its own directory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longfat_lab::{plan::Plan, rerun};
use longfat_schema::run::{Kind, is_plain_path, parse_versioned};

fuzz_target!(|bytes: &[u8]| {
    let Ok((plan, _)) = parse_versioned::<Plan>(bytes, "plan.json", Kind::Plan) else { return };
    if rerun::outside(&plan).is_none() {
        assert!(is_plain_path(&plan.directory()), "{}", plan.directory());
    }
});
