//! Static routes: the fewest links, and among equals the ones declared first.

use crate::{
    net::ARRIVED,
    scenario::{Scenario, ScenarioError},
};
use std::collections::VecDeque;

/// The route table under construction.
#[derive(Debug)]
pub struct Routes<'a> {
    scenario: &'a Scenario,
    table: Vec<u32>,
}

impl<'a> Routes<'a> {
    /// No routes yet.
    pub fn new(scenario: &'a Scenario) -> Routes<'a> {
        Routes { scenario, table: Vec::new() }
    }

    /// Adds a route and returns where it begins.
    pub fn add(&mut self, from: usize, to: usize) -> Result<u32, ScenarioError> {
        let path = self.shortest(from, to)?;
        let start = self.table.len() as u32;
        self.table.extend(path);
        self.table.push(ARRIVED);
        Ok(start)
    }

    /// The link of a route with the least MTU, by its index.
    pub fn narrowest(&self, route: u32) -> Option<usize> {
        let directions = self.table[route as usize..].iter().take_while(|direction| **direction != ARRIVED);
        let links = directions.map(|direction| *direction as usize / 2);
        links.min_by_key(|link| self.scenario.links[*link].plan.mtu_bytes)
    }

    /// The table.
    pub fn finish(self) -> Vec<u32> {
        self.table
    }

    fn shortest(&self, from: usize, to: usize) -> Result<Vec<u32>, ScenarioError> {
        let Scenario { nodes, links, .. } = self.scenario;
        let mut came_by: Vec<Option<(usize, u32)>> = vec![None; nodes.len()];
        let mut next = VecDeque::from([from]);
        while let Some(node) = next.pop_front() {
            if node != from && !nodes[node].forwards {
                continue;
            }
            for (index, link) in links.iter().enumerate() {
                for (side, direction) in [(0, 0), (1, 1)] {
                    let (start, end) = (link.ends[side], link.ends[1 - side]);
                    if start == node && end != from && came_by[end].is_none() {
                        came_by[end] = Some((node, index as u32 * 2 + direction));
                        next.push_back(end);
                    }
                }
            }
        }
        let no_path = || ScenarioError::NoPath { from: nodes[from].name.clone(), to: nodes[to].name.clone() };
        let (mut path, mut node) = (Vec::new(), to);
        while node != from {
            let (before, direction) = came_by[node].ok_or_else(no_path)?;
            path.push(direction);
            node = before;
        }
        path.reverse();
        Ok(path)
    }
}
