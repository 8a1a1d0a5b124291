//! Random loss on the line, after transmission: independent (Bernoulli) or in bursts (Gilbert 1960, Elliott 1963).

use super::random::Random;
use crate::plan::LossPlan;

/// State of a loss process.
#[derive(Debug, Clone)]
pub struct Loss {
    plan: LossPlan,
    bad: bool,
}

impl Loss {
    /// A line in its good state.
    pub fn new(plan: LossPlan) -> Loss {
        Loss { plan, bad: false }
    }

    /// Changes the process; an unchanged one keeps its state.
    pub fn change(&mut self, plan: &LossPlan) {
        if self.plan != *plan {
            *self = Loss::new(plan.clone());
        }
    }

    /// Whether the packet transmitted now is lost.
    pub fn strikes(&mut self, random: &mut Random) -> bool {
        match &self.plan {
            LossPlan::Bernoulli { probability } => random.chance(*probability),
            LossPlan::GilbertElliott { to_bad, to_good, loss_bad, loss_good } => {
                let turns = random.chance(if self.bad { *to_good } else { *to_bad });
                self.bad ^= turns;
                random.chance(if self.bad { *loss_bad } else { *loss_good })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strikes(plan: LossPlan, packets: usize) -> Vec<bool> {
        let (mut loss, mut random) = (Loss::new(plan), Random::new(5, 0));
        (0..packets).map(|_| loss.strikes(&mut random)).collect()
    }

    fn share(strikes: &[bool]) -> f64 {
        strikes.iter().filter(|lost| **lost).count() as f64 / strikes.len() as f64
    }

    #[test]
    fn independent_loss_has_its_probability_and_certainties_are_certain() {
        let lost = share(&strikes(LossPlan::Bernoulli { probability: 0.01 }, 200_000));
        assert!((0.009..0.011).contains(&lost), "{lost}");
        assert_eq!(share(&strikes(LossPlan::Bernoulli { probability: 0.0 }, 1000)), 0.0);
        assert_eq!(share(&strikes(LossPlan::Bernoulli { probability: 1.0 }, 1000)), 1.0);
    }

    #[test]
    fn bursty_loss_has_the_share_and_the_burst_length_of_its_chain() {
        let plan = LossPlan::GilbertElliott { to_bad: 0.01, to_good: 0.25, loss_bad: 1.0, loss_good: 0.0 };
        let lost = strikes(plan, 400_000);
        // Share of time in the bad state: 0.01 / (0.01 + 0.25); mean burst: 1 / 0.25 packets.
        assert!((share(&lost) - 0.01 / 0.26).abs() < 0.003, "{}", share(&lost));
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        let mean = lost.iter().filter(|x| **x).count() as f64 / bursts as f64;
        assert!((3.8..4.2).contains(&mean), "{mean}");
    }
}
