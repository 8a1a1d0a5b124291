//! What a page of the guide asks for.
//!
//! A block ```` ```console ```` holds commands (lines that begin with `$ `, continued by `> `) and what they print.
//! A line `…` stands for any lines, a `…` within a line for any text. A comment before a block may annotate it:
//!
//! - `<!-- guide: file=NAME -->` before a block of another language: the block is written to that file.
//! - `<!-- guide: exit=N -->`: the last command ends with this code, not with 0.
//! - `<!-- guide: append=WORDS -->`: the test adds these words to the last command, to make it shorter.
//! - `<!-- guide: setup=COMMAND -->`: the test runs this first: it makes what the reader's host has.
//! - `<!-- guide: until=FILE: TEXT -->`: after the block, the test waits until the file has this text.
//! - `<!-- guide: elsewhere=WHY -->`: needs what a test has not (a second machine); flags are checked, nothing runs.
//!
//! Several annotations of one block are separated by `;`, `setup` last.

/// A page's blocks, in order.
pub struct Page {
    pub blocks: Vec<Block>,
}

pub struct Block {
    /// Where its fence stands in the page.
    pub line: usize,
    pub annotations: Annotations,
    pub content: Content,
}

pub enum Content {
    Commands(Vec<Command>),
    File { name: String, text: String },
}

/// A command and the lines that the page shows below it.
#[derive(Default)]
pub struct Command {
    pub text: String,
    pub output: Vec<String>,
}

#[derive(Default)]
pub struct Annotations {
    pub file: Option<String>,
    pub exit: i32,
    pub append: String,
    pub setup: Option<String>,
    pub until: Option<(String, String)>,
    pub elsewhere: bool,
}

impl Page {
    pub fn parse(text: &str) -> Result<Page, String> {
        let mut blocks = Vec::new();
        let mut annotations = Annotations::default();
        let mut lines = text.lines().enumerate();
        while let Some((index, line)) = lines.next() {
            if let Some(said) = line.strip_prefix("<!-- guide: ") {
                let said = said.strip_suffix(" -->").ok_or(format!("line {}: no ' -->'", index + 1))?;
                annotations =
                    Annotations::parse(said).map_err(|wrong| format!("line {}: {wrong}", index + 1))?;
            } else if let Some(language) = line.strip_prefix("```") {
                let body: Vec<_> =
                    lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
                let annotations = std::mem::take(&mut annotations);
                let content = content(language, &body, &annotations)
                    .map_err(|wrong| format!("line {}: {wrong}", index + 1))?;
                blocks.extend(content.map(|content| Block { line: index + 1, annotations, content }));
            }
        }
        Ok(Page { blocks })
    }
}

impl Annotations {
    fn parse(text: &str) -> Result<Annotations, String> {
        let mut found = Annotations::default();
        let (text, setup) =
            text.split_once("setup=").map_or((text, None), |(text, setup)| (text, Some(setup)));
        found.setup = setup.map(str::to_owned);
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or(format!("'{part}' is no KEY=VALUE"))?;
            match key {
                "file" => found.file = Some(value.to_owned()),
                "exit" => found.exit = value.parse().map_err(|_| format!("'{value}' is no exit code"))?,
                "append" => found.append = format!(" {value}"),
                "until" => {
                    let (file, text) = value.split_once(": ").ok_or("until=FILE: TEXT")?;
                    found.until = Some((file.to_owned(), text.to_owned()));
                }
                "elsewhere" => found.elsewhere = true,
                _ => return Err(format!("unknown annotation '{key}'")),
            }
        }
        Ok(found)
    }
}

fn content(language: &str, body: &[&str], annotations: &Annotations) -> Result<Option<Content>, String> {
    match (language, &annotations.file) {
        ("console", _) => Ok(Some(Content::Commands(commands(body)?))),
        (_, Some(name)) => Ok(Some(Content::File { name: name.clone(), text: body.join("\n") + "\n" })),
        _ => Ok(None),
    }
}

fn commands(body: &[&str]) -> Result<Vec<Command>, String> {
    let mut found: Vec<Command> = Vec::new();
    for line in body {
        if let Some(text) = line.strip_prefix("$ ") {
            found.push(Command { text: text.to_owned(), ..Command::default() });
            continue;
        }
        let last = found.last_mut().ok_or("a console block begins with a command: '$ …'")?;
        match line.strip_prefix("> ") {
            Some(more) if last.output.is_empty() => last.text.push_str(&format!("\n{more}")),
            _ => last.output.push((*line).to_owned()),
        }
    }
    Ok(found)
}
