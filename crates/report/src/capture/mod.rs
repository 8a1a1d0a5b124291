//! A packet capture, analysed: its flows, what they mean, and the papers' views of them, as one HTML page.

mod figures;
mod page;

use longfat_analyze::analysis::Analysis;

/// Flows whose figures are drawn; all others are in the table.
const DRAWN_FLOWS: usize = 12;

/// The whole page; `name` is what the capture is called.
pub fn html(analysis: &Analysis, name: &str) -> String {
    page::html(analysis, name)
}
