use super::{
    model::{Mode, Model, Next},
    view,
};
use longfat_host::socket::TcpInfo;
use longfat_kernel::tcb::{Connection, State};
use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};

fn connection(number: u16) -> Connection {
    let info = TcpInfo {
        snd_cwnd_segments: number.into(),
        srtt_us: 1000 * u32::from(number),
        delivery_rate_bytes_per_s: u64::from(number) * 125_000,
        ..TcpInfo::default()
    };
    Connection {
        cookie: u64::from(number),
        cc: Some(if number.is_multiple_of(2) { "cubic" } else { "reno" }.into()),
        info: Some(info),
        ..Connection::bare(
            "".into(),
            "10.0.0.1:5000".parse().unwrap(),
            format!("10.0.0.2:{number}").parse().unwrap(),
            State::ESTABLISHED,
        )
    }
}

fn model(count: u16) -> Model {
    let mut model = Model::new(String::new(), Default::default(), "-delivery".parse().unwrap()).unwrap();
    model.on_look(0.0, (1..=count).map(connection).collect());
    model
}

fn press(model: &mut Model, key: KeyCode) -> Next {
    model.on_key(KeyEvent::new(key, KeyModifiers::NONE))
}

fn screen(model: &Model) -> Vec<String> {
    screen_of(model, 140)
}

fn screen_of(model: &Model, width: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, 20)).unwrap();
    terminal.draw(|frame| view::draw(frame, model)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..20).map(line).collect()
}

#[test]
fn a_narrow_terminal_leaves_columns_out_and_cuts_no_value_short() {
    let model = model(1000);
    for (width, shown) in
        [(80, "dst process cc cwnd rtt flight retrans delivery limit"), (40, "dst cwnd rtt delivery")]
    {
        let lines = screen_of(&model, width);
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>().join(" "), shown, "{width}");
        assert!(lines[2].starts_with("10.0.0.2:1000 ") && lines[2].contains("1.00G"), "{}", lines[2]);
    }
}

#[test]
fn a_thousand_connections_are_a_full_screen_with_head_and_help_and_the_fastest_first() {
    let shown = screen(&model(1000));
    assert!(
        shown[0].starts_with("1000 of 1000 connections  filter: all  by delivery descending"),
        "{}",
        shown[0]
    );
    assert!(shown[1].starts_with("dst") && shown[1].contains("cwnd") && shown[1].contains("limit"));
    assert!(shown[2].starts_with("10.0.0.2:1000") && shown[2].contains("1.00G"), "{}", shown[2]);
    assert!(shown[18].starts_with("10.0.0.2:984"), "{}", shown[18]);
    assert!(shown[19].contains("/ filter"));
}

#[test]
fn the_chosen_connection_stays_chosen_and_in_sight_while_others_overtake_it() {
    let mut model = model(1000);
    for _ in 0..500 {
        press(&mut model, KeyCode::Down);
    }
    assert_eq!(model.selected().unwrap().cookie, 500);
    press(&mut model, KeyCode::Char('r'));
    assert_eq!(model.selected().unwrap().cookie, 500);
    assert!(screen(&model).iter().any(|line| line.starts_with("10.0.0.2:500 ")));
    press(&mut model, KeyCode::End);
    assert_eq!(model.selected().unwrap().cookie, 1000);
    model.on_look(1.0, vec![connection(3)]);
    assert_eq!(model.selected().unwrap().cookie, 3, "the chosen one has gone");
    model.on_look(2.0, Vec::new());
    assert!(model.selected().is_none());
    screen(&model);
}

#[test]
fn a_filter_is_written_and_applied_and_a_wrong_one_says_why_and_stays() {
    let mut model = model(10);
    press(&mut model, KeyCode::Char('/'));
    for letter in "cc cubik and rtt > 5".chars() {
        press(&mut model, KeyCode::Char(letter));
    }
    press(&mut model, KeyCode::Enter);
    assert!(screen(&model)[0].contains("has no unit"));
    assert_eq!(model.rows.len(), 10);
    for letter in "ms".chars() {
        press(&mut model, KeyCode::Char(letter));
    }
    press(&mut model, KeyCode::Enter);
    assert_eq!((model.rows.len(), &model.mode, model.problem.is_none()), (0, &Mode::Table, true));
}

#[test]
fn one_connection_is_drawn_over_time() {
    let mut model = model(3);
    for second in 1..30 {
        model.on_look(f64::from(second), (1..=3).map(connection).collect());
    }
    press(&mut model, KeyCode::Enter);
    let shown = screen(&model);
    assert!(shown[1].starts_with("10.0.0.1:5000 > 10.0.0.2:3"), "{}", shown[1]);
    assert!(shown.iter().any(|line| line.contains("cwnd, segments")));
    assert!(shown.iter().any(|line| line.contains("srtt, ms")));
    assert!(shown.iter().any(|line| line.contains("29 s")));
    assert_eq!(model.points().len(), 30);
    assert_eq!(press(&mut model, KeyCode::Esc), Next::On);
    assert_eq!(press(&mut model, KeyCode::Char('q')), Next::Quit);
}

#[test]
fn nothing_moves_while_paused() {
    let mut model = model(3);
    press(&mut model, KeyCode::Char(' '));
    model.on_look(1.0, vec![connection(9)]);
    assert_eq!(model.rows.len(), 3);
    assert!(screen(&model)[0].contains("PAUSED"));
}
