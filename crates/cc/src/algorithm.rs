//! The catalogue of algorithms and their tunables.

use crate::native::{self, Ack, Conn, RawAlgorithm, RawTunable, Sending, State};
use longfat_schema::spelling::nearest;
use std::fmt;

/// What our algorithms' names begin with in the kernel, so that they never collide with its own modules.
const KERNEL_PREFIX: &str = "lf_";

/// A name that is none of our algorithms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no algorithm is called '{name}'; {}", mend(.suggestion.as_deref(), .known))]
pub struct UnknownAlgorithm {
    /// The name asked for.
    pub name: String,
    /// The nearest name there is, when one is near.
    pub suggestion: Option<String>,
    /// Every name there is.
    pub known: Vec<&'static str>,
}

/// A tunable that was not set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// Not `name=value`.
    #[error("'{0}' is not a setting; write it like 'max_ssthresh_segments=100'")]
    Form(String),
    /// No tunable of that name.
    #[error("{algorithm} has no tunable '{name}'; {}", mend(.suggestion.as_deref(), .known))]
    Unknown {
        /// Name of the algorithm whose tunable is meant.
        algorithm: &'static str,
        /// The name asked for.
        name: String,
        /// The nearest name there is, when one is near.
        suggestion: Option<String>,
        /// Every tunable it has.
        known: Vec<&'static str>,
    },
    /// Not a whole number within its bounds.
    #[error("{name} '{value}' is not a whole number from {least} to {greatest}")]
    Value {
        /// The tunable.
        name: &'static str,
        /// The value given.
        value: String,
        /// Least value.
        least: u32,
        /// Greatest value.
        greatest: u32,
    },
}

fn mend(suggestion: Option<&str>, known: &[&str]) -> String {
    match suggestion {
        Some(suggestion) => format!("did you mean '{suggestion}'?"),
        None => format!("known: {}", known.join(", ")),
    }
}

fn suggestion(name: &str, known: &[&'static str]) -> Option<String> {
    nearest(name, known.iter().copied()).map(str::to_owned)
}

/// An algorithm of longfat, as its C header describes it.
#[derive(Clone, Copy)]
pub struct Algorithm(&'static RawAlgorithm);

impl Algorithm {
    /// Every algorithm compiled in.
    pub fn all() -> impl Iterator<Item = Algorithm> {
        native::algorithms().iter().map(Algorithm)
    }

    /// The algorithm of that name, short (`highspeed`) or as the kernel names it (`lf_highspeed`).
    pub fn find(name: &str) -> Result<Algorithm, UnknownAlgorithm> {
        // C has no hyphen in names; people may.
        let written = name.replace('-', "_");
        let short = written.strip_prefix(KERNEL_PREFIX).unwrap_or(&written);
        Algorithm::all().find(|algorithm| algorithm.name() == short).ok_or_else(|| {
            let known: Vec<_> = Algorithm::all().map(|algorithm| algorithm.name()).collect();
            UnknownAlgorithm { name: name.to_owned(), suggestion: suggestion(short, &known), known }
        })
    }

    /// Whether a kernel name is one that ours bear.
    pub fn is_our_name(kernel_name: &str) -> bool {
        kernel_name.starts_with(KERNEL_PREFIX)
    }

    /// Short name: `highspeed`.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Name in the kernel: `lf_highspeed`.
    pub fn kernel_name(&self) -> String {
        format!("{KERNEL_PREFIX}{}", self.name())
    }

    /// What can be set.
    pub fn tunables(&self) -> impl Iterator<Item = Tunable> + use<> {
        self.0.tunables().iter().map(Tunable)
    }

    /// A connection begins, or changes to this algorithm.
    pub fn init(&self, conn: &mut Conn, state: &mut State, tunables: &Tunables) {
        self.0.init(conn, state, self.values_of(tunables));
    }

    /// Segments were acknowledged; the window may grow.
    pub fn on_ack(&self, conn: &mut Conn, state: &mut State, tunables: &Tunables, ack: &Ack) {
        self.0.on_ack(conn, state, self.values_of(tunables), ack);
    }

    /// Loss or ECE: the new slow-start threshold, in segments.
    pub fn ssthresh(&self, conn: &mut Conn, state: &mut State, tunables: &Tunables) -> u32 {
        self.0.ssthresh(conn, state, self.values_of(tunables))
    }

    /// The loss was none: the window to go back to, in segments.
    pub fn undo_cwnd(&self, conn: &mut Conn, state: &mut State, tunables: &Tunables) -> u32 {
        self.0.undo_cwnd(conn, state, self.values_of(tunables))
    }

    /// A round-trip time was measured: at least 1 us, in any recovery state, before [`Algorithm::on_ack`] of the same
    /// acknowledgement. Many algorithms do not listen.
    pub fn on_rtt_sample(&self, conn: &mut Conn, state: &mut State, tunables: &Tunables, rtt_us: u32) {
        self.0.on_rtt_sample(conn, state, self.values_of(tunables), rtt_us);
    }

    /// A segment is sent while none is in flight. Many algorithms do not listen.
    pub fn on_restart(&self, conn: &mut Conn, state: &mut State, tunables: &Tunables) {
        self.0.on_restart(conn, state, self.values_of(tunables));
    }
}

impl Algorithm {
    /// Whether it measures: whether it has [`Algorithm::on_send`] and [`Algorithm::on_ack_seen`], wants pacing, and its
    /// state begins with an [`crate::Avail`].
    pub fn measures(&self) -> bool {
        self.0.measures()
    }

    /// New segments may be sent: the window, the pacing rate and the least burst it wants. `None`: it has no wish.
    pub fn on_send(
        &self,
        conn: &mut Conn,
        state: &mut State,
        tunables: &Tunables,
        sending: &mut Sending,
    ) -> Option<u32> {
        self.0.on_send(conn, state, self.values_of(tunables), sending)
    }

    /// An acknowledgement arrived, and nothing of it has been processed.
    pub fn on_ack_seen(&self, conn: &mut Conn, state: &mut State, tunables: &Tunables, sending: &Sending) {
        self.0.on_ack_seen(conn, state, self.values_of(tunables), sending);
    }
}

impl Algorithm {
    /// # Panics
    /// When they were made for another algorithm.
    fn values_of<'t>(&self, tunables: &'t Tunables) -> &'t [u32] {
        assert_eq!(tunables.algorithm.name(), self.name(), "tunables of another algorithm");
        &tunables.values
    }
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Algorithm").field(&self.name()).finish()
    }
}

impl PartialEq for Algorithm {
    fn eq(&self, other: &Algorithm) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Algorithm {}

/// One thing of an algorithm that can be set, declared beside the algorithm in C.
#[derive(Clone, Copy)]
pub struct Tunable(&'static RawTunable);

impl Tunable {
    /// Name of the tunable, units included.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// What it does.
    pub fn about(&self) -> &'static str {
        self.0.about()
    }

    /// The values it can be set to.
    pub fn range(&self) -> std::ops::RangeInclusive<u32> {
        self.0.least..=self.0.greatest
    }

    /// Value of the tunable unless it is set.
    pub fn default_value(&self) -> u32 {
        self.0.value
    }
}

impl fmt::Debug for Tunable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name(), self.default_value())
    }
}

/// A value for every tunable of one algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunables {
    algorithm: Algorithm,
    values: Vec<u32>,
}

impl Tunables {
    /// The defaults.
    pub fn defaults(algorithm: Algorithm) -> Tunables {
        Tunables { algorithm, values: algorithm.tunables().map(|tunable| tunable.default_value()).collect() }
    }

    /// The defaults, changed by settings like `max_ssthresh_segments=100`.
    pub fn from_settings<S: AsRef<str>>(
        algorithm: Algorithm,
        settings: impl IntoIterator<Item = S>,
    ) -> Result<Tunables, SettingError> {
        let mut tunables = Tunables::defaults(algorithm);
        for setting in settings {
            tunables.set(setting.as_ref())?;
        }
        Ok(tunables)
    }

    /// Values in the order of [`Algorithm::tunables`], as a loaded algorithm holds them; missing ones are defaults.
    pub fn from_values(algorithm: Algorithm, values: impl IntoIterator<Item = u32>) -> Tunables {
        let mut tunables = Tunables::defaults(algorithm);
        for (to, from) in tunables.values.iter_mut().zip(values) {
            *to = from;
        }
        tunables
    }

    fn set(&mut self, setting: &str) -> Result<(), SettingError> {
        let (name, value) = setting.split_once('=').ok_or_else(|| SettingError::Form(setting.to_owned()))?;
        let index = self
            .algorithm
            .tunables()
            .position(|tunable| tunable.name() == name)
            .ok_or_else(|| self.unknown(name))?;
        self.values[index] = checked(&self.algorithm.0.tunables()[index], value)?;
        Ok(())
    }

    fn unknown(&self, name: &str) -> SettingError {
        let known: Vec<_> = self.algorithm.tunables().map(|tunable| tunable.name()).collect();
        let suggestion = suggestion(name, &known);
        SettingError::Unknown { algorithm: self.algorithm.name(), name: name.to_owned(), suggestion, known }
    }

    /// Algorithm that the tunables belong to.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Values in the order of [`Algorithm::tunables`].
    pub fn values(&self) -> &[u32] {
        &self.values
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u32)> {
        self.algorithm.tunables().map(|tunable| tunable.name()).zip(self.values.iter().copied())
    }
}

impl fmt::Display for Tunables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.iter().map(|(name, value)| format!("{name}={value}")).collect();
        f.write_str(&texts.join(" "))
    }
}

fn checked(tunable: &RawTunable, value: &str) -> Result<u32, SettingError> {
    let (least, greatest) = (tunable.least, tunable.greatest);
    value
        .parse()
        .ok()
        .filter(|number| (least..=greatest).contains(number))
        .ok_or_else(|| SettingError::Value { name: tunable.name(), value: value.to_owned(), least, greatest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_algorithm_is_found_by_its_short_and_its_kernel_name() {
        assert_eq!(Algorithm::find("highspeed"), Algorithm::find("lf_highspeed"));
        assert_eq!(Algorithm::find("reno").unwrap().kernel_name(), "lf_reno");
    }

    #[test]
    fn every_kernel_name_fits_the_kernel() {
        for algorithm in Algorithm::all() {
            assert!(algorithm.kernel_name().len() <= 15, "{algorithm:?}");
        }
    }

    #[test]
    fn an_unknown_name_gets_the_nearest_one_or_the_list() {
        let message = |name: &str| Algorithm::find(name).unwrap_err().to_string();
        assert_eq!(message("higspeed"), "no algorithm is called 'higspeed'; did you mean 'highspeed'?");
        assert_eq!(
            message("xyz"),
            "no algorithm is called 'xyz'; known: reno, highspeed, scalable, bic, vegas, cubic, imtcp, imtcp_bg, ledbat, tcp_lp"
        );
    }

    #[test]
    fn settings_are_checked_against_the_declared_tunables() {
        let highspeed = Algorithm::find("highspeed").unwrap();
        let set = |setting: &str| Tunables::from_settings(highspeed, [setting]);
        assert_eq!(set("max_ssthresh_segments=100").unwrap().to_string(), "max_ssthresh_segments=100");
        assert!(
            set("max_ssthresh=100").unwrap_err().to_string().contains("did you mean 'max_ssthresh_segments'")
        );
        assert!(set("max_ssthresh_segments=-1").unwrap_err().to_string().contains("from 0 to 2147483647"));
        assert!(set("100").unwrap_err().to_string().contains("is not a setting"));
    }
}
