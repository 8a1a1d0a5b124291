//! Static routes: the fewest links, and among equals the ones declared first.

use crate::{
    net::ARRIVED,
    scenario::{Scenario, ScenarioError},
};
use std::collections::{BTreeMap, VecDeque};

/// The route table under construction.
#[derive(Debug)]
pub struct Routes<'a> {
    scenario: &'a Scenario,
    /// Neighbours of each node: the nodes one link away, and the direction that leads there, in the order of links.
    neighbours: Vec<Vec<(usize, u32)>>,
    /// Where the route between two nodes begins, once it is known: streams share it.
    known: BTreeMap<(usize, usize), u32>,
    /// Paths that were searched.
    searched: BTreeMap<(usize, usize), Vec<u32>>,
    table: Vec<u32>,
}

impl<'a> Routes<'a> {
    /// No routes yet.
    pub fn new(scenario: &'a Scenario) -> Routes<'a> {
        let mut neighbours = vec![Vec::new(); scenario.nodes.len()];
        for (index, link) in scenario.links.iter().enumerate() {
            let [a, b] = link.ends;
            let forward = index as u32 * 2;
            neighbours[a].push((b, forward));
            neighbours[b].push((a, forward + 1));
        }
        Routes { scenario, neighbours, known: BTreeMap::new(), searched: BTreeMap::new(), table: Vec::new() }
    }

    /// Where the route from one node to another begins.
    pub fn add(&mut self, from: usize, to: usize) -> Result<u32, ScenarioError> {
        if let Some(start) = self.known.get(&(from, to)) {
            return Ok(*start);
        }
        let no_path = || ScenarioError::NoPath {
            from: self.scenario.nodes[from].name.clone(),
            to: self.scenario.nodes[to].name.clone(),
        };
        let path = self.between(from, to).ok_or_else(no_path)?;
        let start = self.table.len() as u32;
        self.table.extend(path);
        self.table.push(ARRIVED);
        self.known.insert((from, to), start);
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

    /// The path between two nodes. One that has a single link has no choice: what is searched, and remembered, is the
    /// way between the nodes behind such links, or ten thousand hosts would search each other's links ten thousand
    /// times.
    fn between(&mut self, from: usize, to: usize) -> Option<Vec<u32>> {
        let forwards = |node: usize| self.scenario.nodes[node].forwards;
        if from == to {
            return Some(Vec::new());
        }
        if let Some((next, direction)) =
            self.only_way(from).filter(|(next, _)| *next != to && forwards(*next))
        {
            let mut path = vec![direction];
            path.extend(self.between(next, to)?);
            return Some(path);
        }
        if let Some((before, direction)) =
            self.only_way(to).filter(|(next, _)| *next != from && forwards(*next))
        {
            let mut path = self.between(from, before)?;
            // The other direction of the same link.
            path.push(direction ^ 1);
            return Some(path);
        }
        if let Some(path) = self.searched.get(&(from, to)) {
            return Some(path.clone());
        }
        let path = self.search(from, to)?;
        self.searched.insert((from, to), path.clone());
        Some(path)
    }

    /// The one link of a node, if what is behind it has others.
    fn only_way(&self, node: usize) -> Option<(usize, u32)> {
        match self.neighbours[node].as_slice() {
            [one] if self.neighbours[one.0].len() > 1 => Some(*one),
            _ => None,
        }
    }

    fn search(&self, from: usize, to: usize) -> Option<Vec<u32>> {
        let mut came_by: Vec<Option<(usize, u32)>> = vec![None; self.neighbours.len()];
        let mut next = VecDeque::from([from]);
        while let Some(node) = next.pop_front() {
            if came_by[to].is_some() {
                break;
            }
            if node != from && !self.scenario.nodes[node].forwards {
                continue;
            }
            for (end, direction) in &self.neighbours[node] {
                if *end != from && came_by[*end].is_none() {
                    came_by[*end] = Some((node, *direction));
                    next.push_back(*end);
                }
            }
        }
        let (mut path, mut node) = (Vec::new(), to);
        while node != from {
            let (before, direction) = came_by[node]?;
            path.push(direction);
            node = before;
        }
        path.reverse();
        Some(path)
    }
}
