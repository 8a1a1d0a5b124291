//! What the terminal view shows: a pure model. Looks and keys go in, with the time; nothing is read or drawn here.

use super::super::show::{self, Order};
use crate::commands::why;
use longfat_kernel::tcb::{Connection, Filter, field::Field, limit};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::{HashMap, HashSet, VecDeque};

/// Points kept of each connection: ten minutes at one look in half a second.
const HISTORY: usize = 1200;

/// Fields of the table, in order.
const COLUMNS: &str =
    "dst,process,state,cc,cwnd,ssthresh,rtt,minrtt,flight,retrans,delivery,avail,limit,cause";

/// One look at one connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Seconds since the view began.
    pub time_s: f64,
    /// Congestion window.
    pub cwnd_segments: f64,
    /// Smoothed round-trip time.
    pub srtt_ms: f64,
}

/// What the keys mean now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// The table.
    Table,
    /// One connection over time.
    Plot,
    /// Writing a filter.
    Filter(String),
}

/// Everything that is shown.
pub struct Model {
    /// Fields shown.
    pub columns: Vec<&'static Field>,
    /// Connections that match, in order.
    pub rows: Vec<Connection>,
    /// What the keys mean.
    pub mode: Mode,
    /// The filter as it was written.
    pub filter_text: String,
    /// What went wrong with it, or with the last look.
    pub problem: Option<String>,
    /// Nothing is looked at.
    pub paused: bool,
    order: Order,
    filter: Filter,
    selected: Option<u64>,
    everything: Vec<Connection>,
    last_s: Option<f64>,
    history: HashMap<u64, VecDeque<Point>>,
}

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Go on.
    On,
    /// The person has seen enough.
    Quit,
}

impl Model {
    /// An empty view.
    pub fn new(filter_text: String, filter: Filter, order: Order) -> anyhow::Result<Model> {
        Ok(Model {
            columns: show::fields(COLUMNS)?,
            rows: Vec::new(),
            mode: Mode::Table,
            filter_text,
            problem: None,
            paused: false,
            order,
            filter,
            selected: None,
            everything: Vec::new(),
            last_s: None,
            history: HashMap::new(),
        })
    }

    /// Whether its filter speaks of that field.
    pub fn asks_for(&self, field: &str) -> bool {
        self.filter.asks_for(field)
    }

    /// Takes in every connection as seen `time_s` after the view began.
    pub fn on_look(&mut self, time_s: f64, mut connections: Vec<Connection>) {
        if self.paused {
            return;
        }
        let elapsed_us = self.last_s.map(|last| ((time_s - last) * 1e6) as u64);
        if let Some(elapsed_us) = elapsed_us {
            limit::compare(&self.everything, &mut connections, elapsed_us);
            why::compare(&self.everything, &mut connections, elapsed_us);
        }
        self.last_s = Some(time_s);
        self.everything = connections;
        self.remember(time_s);
        self.arrange();
    }

    fn remember(&mut self, time_s: f64) {
        let alive: HashSet<u64> = self.everything.iter().map(|one| one.cookie).collect();
        self.history.retain(|cookie, _| alive.contains(cookie));
        for connection in &self.everything {
            let Some(info) = &connection.info else { continue };
            let points = self.history.entry(connection.cookie).or_default();
            if points.len() == HISTORY {
                points.pop_front();
            }
            points.push_back(Point {
                time_s,
                cwnd_segments: info.snd_cwnd_segments.into(),
                srtt_ms: f64::from(info.srtt_us) / 1000.0,
            });
        }
    }

    fn arrange(&mut self) {
        self.rows = self.everything.iter().filter(|one| self.filter.matches(one)).cloned().collect();
        let order = self.order;
        self.rows.sort_by(|a, b| order.compare(a, b));
    }

    /// The row that is marked: the one chosen while it stands, else the first.
    pub fn selected_row(&self) -> usize {
        let place = |cookie| self.rows.iter().position(|row| row.cookie == cookie);
        self.selected.and_then(place).unwrap_or(0)
    }

    /// The marked connection.
    pub fn selected(&self) -> Option<&Connection> {
        self.rows.get(self.selected_row())
    }

    /// Points of the chosen connection over time.
    pub fn points(&self) -> Vec<Point> {
        let points = self.selected().and_then(|one| self.history.get(&one.cookie));
        points.map(|points| points.iter().copied().collect()).unwrap_or_default()
    }

    /// The rows that fit `height` lines, such that the marked one is among them; and the first one's number.
    pub fn visible(&self, height: usize) -> (usize, &[Connection]) {
        let height = height.max(1);
        let first = self.selected_row().saturating_sub(height / 2);
        let first = first.min(self.rows.len().saturating_sub(height));
        (first, &self.rows[first..self.rows.len().min(first + height)])
    }

    /// How many connections there are, whether they match or not.
    pub fn total(&self) -> usize {
        self.everything.len()
    }

    /// `rtt ascending`
    pub fn order_text(&self) -> String {
        format!(
            "{} {}",
            self.order.field.name,
            if self.order.descending { "descending" } else { "ascending" }
        )
    }

    /// A key was pressed.
    pub fn on_key(&mut self, key: KeyEvent) -> Next {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Next::Quit;
        }
        match self.mode.clone() {
            Mode::Filter(text) => self.edit(text, key.code),
            Mode::Plot if matches!(key.code, KeyCode::Esc | KeyCode::Enter) => self.mode = Mode::Table,
            _ => return self.command(key.code),
        }
        Next::On
    }

    fn edit(&mut self, mut text: String, key: KeyCode) {
        match key {
            KeyCode::Esc => return self.mode = Mode::Table,
            KeyCode::Enter => return self.apply_filter(text),
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Char(letter) => text.push(letter),
            _ => {}
        }
        self.mode = Mode::Filter(text);
    }

    fn apply_filter(&mut self, text: String) {
        match text.parse::<Filter>() {
            Ok(filter) => {
                (self.filter, self.filter_text, self.problem) = (filter, text, None);
                self.mode = Mode::Table;
                self.arrange();
            }
            Err(error) => {
                self.problem = error.to_string().lines().next().map(str::to_owned);
                self.mode = Mode::Filter(text);
            }
        }
    }

    fn command(&mut self, key: KeyCode) -> Next {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Next::Quit,
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::PageDown => self.go(20),
            KeyCode::PageUp => self.go(-20),
            KeyCode::Home => self.go(isize::MIN / 2),
            KeyCode::End => self.go(isize::MAX / 2),
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('r') => self.order.descending = !self.order.descending,
            KeyCode::Char('/') => self.mode = Mode::Filter(self.filter_text.clone()),
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Enter => self.mode = Mode::Plot,
            _ => {}
        }
        self.arrange();
        Next::On
    }

    fn go(&mut self, by: isize) {
        let last = self.rows.len().saturating_sub(1);
        let to = self.selected_row().saturating_add_signed(by).min(last);
        self.selected = self.rows.get(to).map(|row| row.cookie);
    }

    fn sort_by_next(&mut self) {
        let now = self.columns.iter().position(|field| field.name == self.order.field.name);
        let next = now.map_or(0, |at| (at + 1) % self.columns.len());
        self.order.field = self.columns[next];
    }
}
