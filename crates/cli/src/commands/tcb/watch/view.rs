//! The model drawn.

use super::{
    super::show,
    model::{Mode, Model, Point},
};
use longfat_kernel::tcb::Connection;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    symbols::Marker,
    text::{Line, Text},
    widgets::{Axis, Chart, Dataset, GraphType, Paragraph, Row, Table},
};

/// Draws everything: a head line, the table or the plot, a help line.
pub fn draw(frame: &mut Frame<'_>, model: &Model) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(3), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(headline(model)).style(Modifier::BOLD), head);
    match model.mode {
        Mode::Plot => plot(frame, body, model),
        _ => table(frame, body, model),
    }
    frame.render_widget(Paragraph::new(help(model)).style(Modifier::REVERSED), foot);
}

fn headline(model: &Model) -> String {
    let filter = if model.filter_text.is_empty() { "all" } else { &model.filter_text };
    let paused = if model.paused { "  PAUSED" } else { "" };
    let problem = model.problem.as_ref().map(|problem| format!("  {problem}")).unwrap_or_default();
    let (shown, total) = (model.rows.len(), model.total());
    format!("{shown} of {total} connections  filter: {filter}  by {}{paused}{problem}", model.order_text())
}

fn help(model: &Model) -> String {
    match &model.mode {
        Mode::Filter(text) => format!(" filter: {text}\u{2588}   Enter applies, Esc leaves it as it was "),
        Mode::Plot => " Enter table  up/down another connection  space pause  q quit ".to_owned(),
        Mode::Table => " up/down choose  Enter draw it over time  s sort by the next column  r reverse  / filter  space pause  q quit ".to_owned(),
    }
}

fn table(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let height = usize::from(area.height).saturating_sub(1);
    let (first, rows) = model.visible(height);
    let cells: Vec<Vec<String>> = rows.iter().map(|row| cells(model, row)).collect();
    let widths: Vec<usize> = (0..model.columns.len())
        .map(|column| {
            let widest = cells.iter().map(|row| row[column].len()).max().unwrap_or(0);
            widest.max(model.columns[column].name.len())
        })
        .collect();
    let names: Vec<&str> = model.columns.iter().map(|field| field.name).collect();
    let shown = show::fitting(&names, &widths, area.width.into());
    let header =
        Row::new(shown.iter().map(|column| aligned(model.columns[*column], names[*column].to_owned())));
    let selected = model.selected_row();
    let lines = cells.into_iter().enumerate().map(|(index, row)| {
        let style = if first + index == selected { Modifier::REVERSED } else { Modifier::empty() };
        Row::new(shown.iter().map(|column| aligned(model.columns[*column], row[*column].clone())))
            .style(Style::default().add_modifier(style))
    });
    let widths = shown.iter().map(|column| Constraint::Length(widths[*column] as u16));
    let table = Table::new(lines, widths)
        .header(header.style(Modifier::UNDERLINED))
        .column_spacing(show::SPACING as u16);
    frame.render_widget(table, area);
}

fn aligned(field: &longfat_kernel::tcb::field::Field, cell: String) -> Text<'static> {
    let line = Line::from(cell);
    Text::from(if show::is_numeric(field.kind) { line.right_aligned() } else { line })
}

fn cells(model: &Model, row: &Connection) -> Vec<String> {
    let cell = |field: &&'static longfat_kernel::tcb::field::Field| {
        let mut text = String::new();
        show::write_value(field.kind, &field.value(row), &mut text);
        text
    };
    model.columns.iter().map(cell).collect()
}

fn plot(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let [name, cwnd, rtt] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
    let title =
        model.selected().map_or("no connection".to_owned(), |one| format!("{} > {}", one.local, one.remote));
    frame.render_widget(Paragraph::new(title), name);
    let points = model.points();
    chart(frame, cwnd, "cwnd, segments", &points, |point| point.cwnd_segments);
    chart(frame, rtt, "srtt, ms", &points, |point| point.srtt_ms);
}

fn chart(frame: &mut Frame<'_>, area: Rect, title: &str, points: &[Point], value: impl Fn(&Point) -> f64) {
    let data: Vec<(f64, f64)> = points.iter().map(|point| (point.time_s, value(point))).collect();
    let (start, end) = (data.first().map_or(0.0, |p| p.0), data.last().map_or(1.0, |p| p.0));
    let most = data.iter().map(|p| p.1).fold(f64::MIN_POSITIVE, f64::max) * 1.1;
    let line = Dataset::default().data(&data).graph_type(GraphType::Line).marker(Marker::Braille);
    let times = [format!("{start:.0} s"), format!("{end:.0} s")];
    let values = ["0".to_owned(), format!("{:.3}", most / 2.0), format!("{most:.3}")];
    let chart = Chart::new(vec![line])
        .x_axis(Axis::default().bounds([start, end.max(start + 1.0)]).labels(times))
        .y_axis(Axis::default().title(title).bounds([0.0, most]).labels(values));
    frame.render_widget(chart, area);
}
