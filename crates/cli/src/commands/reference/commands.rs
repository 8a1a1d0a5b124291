//! Every command with its flags, from the definitions that parse them.

use super::{
    Page,
    markdown::{cell, code, heading, prose, table},
};
use clap::{Arg, ArgAction, Command};

const FROM: &str = "the program's own definitions";

/// A page for each command, and one that lists them.
pub fn pages(mut program: Command) -> Vec<Page> {
    program.build();
    let shown: Vec<_> = visible(&program).cloned().collect();
    let mut pages: Vec<_> = shown.iter().map(page).collect();
    pages.push(index(&shown));
    pages
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

fn file(command: &Command) -> String {
    format!("longfat-{}.md", command.get_name())
}

fn index(commands: &[Command]) -> Page {
    let row = |command: &Command| {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let subs = visible(command).map(|sub| format!("`{}`", sub.get_name())).collect::<Vec<_>>().join(", ");
        [format!("[`longfat {}`]({})", command.get_name(), file(command)), cell(&about), subs]
    };
    let rows: Vec<_> = commands.iter().map(row).collect();
    let text = heading("Commands", FROM) + &table(["command", "what for", "subcommands"], &rows);
    Page { name: "commands.md".into(), text: text.trim_end().to_owned() + "\n" }
}

fn page(command: &Command) -> Page {
    let mut text = heading(&format!("`longfat {}`", command.get_name()), FROM);
    describe(command, &mut text);
    Page { name: file(command), text: text.trim_end().to_owned() + "\n" }
}

/// One command, and those below it.
fn describe(command: &Command, text: &mut String) {
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        text.push_str(&prose(&about.to_string()));
    }
    let usage = command.clone().render_usage().to_string();
    text.push_str(&code(usage.trim_start_matches("Usage:").trim()));
    text.push_str(&arguments(command));
    if let Some(after) = command.get_after_long_help().or(command.get_after_help()) {
        text.push_str(&code(&after.to_string()));
    }
    for sub in visible(command) {
        let name = sub.get_bin_name().unwrap_or(sub.get_name());
        text.push_str(&format!("## `{name}`\n\n"));
        describe(sub, text);
    }
}

fn arguments(command: &Command) -> String {
    let is_shown = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let rows: Vec<_> = command.get_arguments().filter(is_shown).map(row).collect();
    table(["argument", "default", "meaning"], &rows)
}

fn row(arg: &Arg) -> [String; 3] {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let (help, told) = stated_default(&help);
    let set = arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned());
    let set = set.filter(|_| takes_value(arg)).collect::<Vec<_>>().join(", ");
    let default = if set.is_empty() { told } else { format!("`{}`", set.replace('|', "\\|")) };
    [spelling(arg), default, cell(&(help + &values(arg)))]
}

/// A help text without its '[default: …]', and that default.
fn stated_default(help: &str) -> (String, String) {
    match help.split_once("[default: ").and_then(|(before, rest)| Some((before, rest.rsplit_once(']')?))) {
        Some((before, (told, behind))) => {
            (format!("{}{}", before.trim_end(), behind).replace("..", "."), cell(told))
        }
        None => (help.to_owned(), String::new()),
    }
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

fn spelling(arg: &Arg) -> String {
    let named = arg.get_value_names().unwrap_or_default();
    let value = named.iter().map(|name| format!("<{name}>")).collect::<Vec<_>>().join(" ");
    if arg.is_positional() {
        return format!("`{value}`");
    }
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let names = short.into_iter().chain(long).collect::<Vec<_>>().join(", ");
    let value = if takes_value(arg) { format!(" {value}") } else { String::new() };
    format!("`{names}{}`", value.trim_end().replace('|', "\\|"))
}

/// The words an argument takes, where they are listed.
fn values(arg: &Arg) -> String {
    let possible = if takes_value(arg) { arg.get_possible_values() } else { Vec::new() };
    let one = |value: &clap::builder::PossibleValue| match value.get_help() {
        Some(help) => format!("`{}`: {}", value.get_name(), help.to_string().trim_end_matches('.')),
        None => format!("`{}`", value.get_name()),
    };
    let all: Vec<_> = possible.iter().filter(|value| !value.is_hide_set()).map(one).collect();
    if all.is_empty() { String::new() } else { format!(" Values: {}.", all.join("; ")) }
}
