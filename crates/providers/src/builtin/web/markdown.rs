//! HTML to readable Markdown.
//!
//! The page is converted token by token, without a tree: time and memory are linear in its size and nothing recurses,
//! so no page can exhaust the process by nesting or unclosed formatting. The result is for reading only: text is not
//! escaped, and it does not convert back.

use std::cell::RefCell;

use html5ever::tendril::StrTendril;
use html5ever::tokenizer::states::RawKind;
use html5ever::tokenizer::{BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts};
use url::Url;

use super::blocks::{InlineMark, MarkKind, RowPosition, Writer};

/// Longer link targets are left out, so that a long base URL is not repeated.
const MAX_TARGET: usize = 2048;
/// The most bytes of a title.
const MAX_TITLE: usize = 1024;
/// Elements without readable content, in addition to those that the tokenizer takes as raw text.
const NOISE: [&str; 11] =
    ["template", "noscript", "svg", "math", "object", "canvas", "nav", "footer", "button", "select", "dialog"];
/// Elements that end an unclosed one of the above.
const CONTENT: [&str; 4] = ["main", "article", "h1", "body"];
/// Elements whose end tag is often omitted.
const UNCLOSED: [&str; 6] = ["p", "li", "dt", "dd", "tr", "td"];
/// Elements that may contain those of [`UNCLOSED`] inside another of the same name, and that end them.
const SCOPES: [&str; 5] = ["ul", "ol", "menu", "dl", "table"];
/// Elements without an end tag.
const VOID: [&str; 13] =
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"];

/// A converted page.
#[derive(Debug)]
pub(super) struct Page {
    /// Its text.
    pub(super) markdown: String,
    /// Its `<title>`.
    pub(super) title: Option<String>,
}

/// Converts a page; links are resolved against `base`, or the page's own `<base>`. Scripts, styles, navigation, footers
/// and form controls are left out. The Markdown is bounded by four times the HTML.
pub(super) fn to_markdown(html: &str, base: Url) -> Page {
    let sink = Sink(RefCell::new(Converter {
        writer: Writer::new(html.len() * 4 + 1024),
        base,
        skipping: None,
        skips_hidden: false,
        scopes: 0,
        code: None,
        title: None,
        in_title: false,
        has_heading: false,
        tables: 0,
        table: Table::default(),
    }));
    let tokenizer = Tokenizer::new(sink, TokenizerOpts::default());
    let input = BufferQueue::default();
    input.push_back(StrTendril::from(html));
    // The sink never requests a script to run, so one feed takes everything.
    let _ = tokenizer.feed(&input);
    tokenizer.end();
    tokenizer.sink.0.into_inner().finish()
}

struct Sink(RefCell<Converter>);

impl TokenSink for Sink {
    type Handle = ();

    fn process_token(&self, token: Token, _line: u64) -> TokenSinkResult<()> {
        let mut converter = self.0.borrow_mut();
        match token {
            Token::CharacterTokens(text) => converter.text(&text),
            Token::TagToken(tag) if tag.kind == TagKind::StartTag => {
                let name: &str = &tag.name;
                converter.start(name, &tag);
                return match name {
                    "script" => TokenSinkResult::RawData(RawKind::ScriptData),
                    "style" | "iframe" | "noembed" | "noframes" | "xmp" => TokenSinkResult::RawData(RawKind::Rawtext),
                    "title" | "textarea" => TokenSinkResult::RawData(RawKind::Rcdata),
                    "plaintext" => TokenSinkResult::Plaintext,
                    _ => TokenSinkResult::Continue,
                };
            }
            Token::TagToken(tag) => converter.end(&tag.name),
            _ => {}
        }
        TokenSinkResult::Continue
    }
}

/// The outermost table.
#[derive(Debug, Default)]
struct Table {
    /// Whether its first cell is a heading: such a table is data, while others may be layout.
    data: bool,
    rows: usize,
    cells: usize,
}

struct Converter {
    writer: Writer,
    base: Url,
    /// The element that is left out, and how many of its name are open.
    skipping: Option<(String, usize)>,
    /// Whether it is left out because it is hidden from people.
    skips_hidden: bool,
    /// Lists and tables open in the left-out element.
    scopes: usize,
    /// Language and text of the open `<pre>`.
    code: Option<(String, String)>,
    title: Option<String>,
    in_title: bool,
    has_heading: bool,
    /// The number of nested open tables.
    tables: usize,
    table: Table,
}

impl Converter {
    fn text(&mut self, text: &str) {
        if self.in_title {
            let title = self.title.get_or_insert_default();
            if title.len() + text.len() <= MAX_TITLE {
                title.push_str(text);
            }
        } else if self.skipping.is_some() {
        } else if let Some((_, code)) = &mut self.code {
            code.push_str(text);
        } else {
            self.writer.text(text);
        }
    }

    fn start(&mut self, name: &str, tag: &Tag) {
        // An unclosed paragraph ends at the next one. A hidden element ends as in a browser.
        let ends = |(skipped, _): &(String, usize)| match self.skips_hidden {
            true => self.scopes == 0 && UNCLOSED.contains(&name) && skipped == name,
            false => CONTENT.contains(&name),
        };
        if self.skipping.as_ref().is_some_and(ends) {
            self.skipping = None;
        }
        if let Some((skipped, depth)) = &mut self.skipping {
            let is_scoped = self.skips_hidden && UNCLOSED.contains(&&**skipped);
            self.scopes += usize::from(is_scoped && SCOPES.contains(&name));
            *depth += usize::from(skipped == name && !tag.self_closing && !is_scoped);
            return;
        }
        self.scopes = 0;
        self.skips_hidden = is_hidden(tag) && !VOID.contains(&name) && !tag.self_closing;
        if self.skips_hidden {
            self.skipping = Some((name.to_owned(), 1));
            return;
        }
        match name {
            "script" | "style" | "iframe" | "noembed" | "noframes" | "textarea" => {
                self.skipping = Some((name.to_owned(), 1))
            }
            _ if NOISE.contains(&name) && !tag.self_closing => self.skipping = Some((name.to_owned(), 1)),
            "title" => self.in_title = self.title.is_none(),
            "base" => {
                if let Some(base) = attribute(tag, "href").and_then(|href| self.base.join(href).ok()) {
                    self.base = base;
                }
            }
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => {
                self.has_heading |= name == "h1";
                self.writer.heading(heading_lead(name));
            }
            "p" | "section" | "article" | "main" | "header" | "figure" | "form" | "fieldset" | "dl" | "details" => {
                self.writer.boundary(2)
            }
            "div" | "dt" | "dd" | "summary" | "figcaption" | "caption" | "legend" | "address" | "aside" | "hgroup"
            | "center" | "option" => {
                self.writer.boundary(1);
            }
            "br" => match &mut self.code {
                Some((_, code)) => code.push('\n'),
                None => self.writer.line_break(),
            },
            "hr" => self.writer.rule(),
            "blockquote" => self.writer.quote(),
            "ul" | "menu" => self.writer.list(None),
            "ol" => self.writer.list(Some(attribute(tag, "start").and_then(|start| start.parse().ok()).unwrap_or(1))),
            "li" => self.writer.item(),
            "pre" | "xmp" | "listing" => self.code = Some((language(tag).to_owned(), String::new())),
            "code" | "kbd" | "samp" | "tt" => match &mut self.code {
                Some((known, _)) if known.is_empty() => *known = language(tag).to_owned(),
                Some(_) => {}
                None => self.writer.open(InlineMark::Code),
            },
            "strong" | "b" => self.writer.open(InlineMark::Strong),
            "em" | "i" => self.writer.open(InlineMark::Emphasis),
            "a" => {
                self.writer.close(MarkKind::Link);
                if let Some(target) = attribute(tag, "href").and_then(|href| self.target(href)) {
                    self.writer.open(InlineMark::Link(target));
                }
            }
            "img" => self.image(tag),
            "table" => self.open_table(),
            "tr" => self.row(),
            "td" | "th" => self.cell(name),
            _ => {}
        }
    }

    fn end(&mut self, name: &str) {
        if name == "title" {
            self.in_title = false;
            return;
        }
        if let Some((skipped, depth)) = &mut self.skipping {
            let is_scoped = self.skips_hidden && UNCLOSED.contains(&&**skipped);
            let ends_scope = is_scoped && SCOPES.contains(&name);
            // The end of the enclosing element also ends what was not closed.
            let is_over = match (is_scoped, self.scopes) {
                (true, 0) => skipped == name || ends_scope,
                (true, _) => false,
                (false, _) => {
                    *depth -= usize::from(skipped == name);
                    *depth == 0
                }
            };
            self.scopes = self.scopes.saturating_sub(usize::from(ends_scope));
            if is_over {
                self.skipping = None;
            }
            if !(is_over && ends_scope) {
                return;
            }
        }
        match name {
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => self.writer.end_heading(),
            "p" | "section" | "article" | "main" | "header" | "figure" | "form" | "fieldset" | "dl" | "details" => {
                self.writer.boundary(2)
            }
            "div" | "dt" | "dd" | "summary" | "figcaption" | "caption" | "legend" | "address" | "aside" | "hgroup"
            | "center" | "option" | "li" => {
                self.writer.boundary(1);
            }
            "blockquote" => self.writer.end_quote(),
            "ul" | "ol" | "menu" => self.writer.end_list(),
            "pre" | "xmp" | "listing" => self.end_code(),
            "code" | "kbd" | "samp" | "tt" => self.writer.close(MarkKind::Code),
            "strong" | "b" => self.writer.close(MarkKind::Strong),
            "em" | "i" => self.writer.close(MarkKind::Emphasis),
            "a" => self.writer.close(MarkKind::Link),
            "tr" => self.end_row(),
            "table" => self.close_table(),
            _ => {}
        }
    }

    fn end_code(&mut self) {
        if let Some((language, code)) = self.code.take() {
            // HTML drops a line feed right after the start tag.
            self.writer.code_block(&language, code.strip_prefix('\n').unwrap_or(&code));
        }
    }

    fn image(&mut self, tag: &Tag) {
        let alt =
            attribute(tag, "alt").map(|alt| alt.split_whitespace().collect::<Vec<_>>().join(" ")).unwrap_or_default();
        if alt.is_empty() {
            return;
        }
        match attribute(tag, "src").and_then(|src| self.target(src)) {
            Some(src) => self.writer.word(&format!("![{alt}]({src})")),
            None => self.writer.word(&format!("[image: {alt}]")),
        }
    }

    /// Returns the absolute form of a useful link.
    fn target(&self, href: &str) -> Option<String> {
        let href = href.trim();
        if href.is_empty() || href.starts_with('#') {
            return None;
        }
        let url = self.base.join(href).ok()?;
        let kept = matches!(url.scheme(), "http" | "https" | "mailto" | "ftp") && url.as_str().len() <= MAX_TARGET;
        // Parentheses would end the target.
        kept.then(|| url.as_str().replace('(', "%28").replace(')', "%29"))
    }

    fn open_table(&mut self) {
        if self.tables == 0 {
            self.writer.boundary(2);
            self.table = Table::default();
        } else {
            self.writer.boundary(1);
        }
        self.tables += 1;
    }

    fn close_table(&mut self) {
        self.end_row();
        self.tables = self.tables.saturating_sub(1);
        self.writer.boundary(if self.tables == 0 { 2 } else { 1 });
    }

    fn row(&mut self) {
        self.end_row();
        self.writer.boundary(1);
    }

    fn cell(&mut self, name: &str) {
        if self.tables != 1 {
            self.writer.boundary(1);
            return;
        }
        if self.table.rows == 0 && self.table.cells == 0 {
            self.table.data = name == "th";
        }
        if self.table.data {
            self.writer.cell();
        } else if self.table.cells > 0 {
            self.writer.text(" | ");
        }
        self.table.cells += 1;
    }

    fn end_row(&mut self) {
        if self.tables != 1 || self.table.cells == 0 {
            return;
        }
        if self.table.data {
            let position = if self.table.rows == 0 { RowPosition::First } else { RowPosition::Later };
            self.writer.end_row(self.table.cells, position);
        }
        self.table.rows += 1;
        self.table.cells = 0;
    }

    fn finish(mut self) -> Page {
        self.end_code();
        self.end_row();
        let title = self
            .title
            .map(|title| title.split_whitespace().collect::<Vec<_>>().join(" "))
            .filter(|title| !title.is_empty());
        let (mut markdown, full) = self.writer.finish();
        if let (Some(title), false) = (&title, self.has_heading) {
            markdown = format!("# {title}\n\n{markdown}").trim_end().to_owned();
        }
        if full {
            markdown.push_str("\n\n[web__fetch left out the rest: as Markdown the page is over four times its size]");
        }
        Page { markdown, title }
    }
}

fn heading_lead(name: &str) -> &'static str {
    match name {
        "h1" => "# ",
        "h2" => "## ",
        "h3" => "### ",
        "h4" => "#### ",
        "h5" => "##### ",
        _ => "###### ",
    }
}

/// Returns whether the element itself says that it is hidden: text for programs alone can mislead models.
fn is_hidden(tag: &Tag) -> bool {
    let style = attribute(tag, "style").unwrap_or_default();
    let style: String = style.chars().filter(|c| !c.is_whitespace()).collect::<String>().to_ascii_lowercase();
    let by_style = ["display:none", "visibility:hidden", "font-size:0;", "font-size:0px"];
    let ended = format!("{style};");
    // Some pages are hidden until a script has run.
    let is_page = ["html", "body"].contains(&&*tag.name);
    !is_page && (attribute(tag, "hidden").is_some() || by_style.iter().any(|hides| ended.contains(hides)))
}

fn attribute<'a>(tag: &'a Tag, name: &str) -> Option<&'a str> {
    tag.attrs.iter().find(|attribute| &*attribute.name.local == name).map(|attribute| &*attribute.value)
}

/// Returns the language in a class like `language-rust` or `lang-rust`.
fn language(tag: &Tag) -> &str {
    attribute(tag, "class")
        .and_then(|class| {
            class.split_whitespace().find_map(|c| c.strip_prefix("language-").or_else(|| c.strip_prefix("lang-")))
        })
        .filter(|language| language.len() <= 32)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(html: &str, expect: &str) {
        let base = Url::parse("http://site.example/dir/page").expect("url");
        assert_eq!(to_markdown(html, base).markdown, expect, "{html}");
    }

    #[test]
    fn blocks_and_marks() {
        check("<h1>A  b</h1><p>one<p>two<br>three", "# A b\n\none\n\ntwo\nthree");
        check("<p>a<b> bold </b>c <i>d</i></p>", "a **bold** c *d*");
        check("<p><b>a<p>b</b>", "**a**\n\nb");
        check("<p><b></b>x<code>y z</code>", "x`y z`");
        check("a<hr>b", "a\n\n---\n\nb");
        check("<blockquote><p>a<p>b</blockquote>c", "> a\n>\n> b\n\nc");
        check("<h2></h2><p>x", "x");
        check("&lt;a&gt; &amp; &eacute;", "<a> & é");
    }

    #[test]
    fn hidden_html_elements_are_left_out() {
        check("a<div hidden>b<h1>c</h1><div>d</div></div>e", "ae");
        check("a<span style='Display : none'>b</span>c<img hidden src=x>d", "acd");
        check("<ul><li hidden>b<ul><li>c<li>d</li></ul>e</li><li>f</ul>", "- f");
        check("<ul><li hidden>b</ul>c<table><tr hidden><td><table><tr><td>x</table>y<tr><td>z</table>", "c\n\nz");
        check("<p style='font-size:0'>a<p>b", "b");
        check("<body style='visibility:hidden'><p style='color:red'>a", "a");
    }

    #[test]
    fn lists_nest_and_need_no_end_tags() {
        check("<ul><li>a<li>b<ul><li>c</ul><li>d</ul>e", "- a\n- b\n  - c\n- d\n\ne");
        check("<ol start=3><li>a<li>b<p>c</ol>", "3. a\n4. b\n\n   c");
        check("<li>stray", "- stray");
    }

    #[test]
    fn links_and_images_are_absolute_or_dropped() {
        check(
            "<a href='x?a=1'>t</a> <a href='#f'>u</a> <a href='javascript:x'>v</a>",
            "[t](http://site.example/dir/x?a=1) u v",
        );
        check("<a href=/c><h3>Card</h3><p>text</a>", "### [Card](http://site.example/c)\n\ntext");
        check("<img src=i.png alt='An image'><img src=j.png>", "![An image](http://site.example/dir/i.png)");
        check("<base href='http://cdn.example/'><a href=x>t</a>", "[t](http://cdn.example/x)");
        check("<a href=/w_(x)>t</a>", "[t](http://site.example/w_%28x%29)");
    }

    #[test]
    fn code_is_kept_unchanged() {
        check(
            "<pre><code class='language-rust'>fn a() {\n    b\n}\n</code></pre>x",
            "```rust\nfn a() {\n    b\n}\n```\n\nx",
        );
        check("<pre>a ``` b</pre>", "````\na ``` b\n````");
        check("<ul><li>x<pre>a\nb</pre></ul>", "- x\n\n  ```\n  a\n  b\n  ```");
    }

    #[test]
    fn tables_with_headings_are_tables() {
        check(
            "<table><tr><th>a<th>b</tr><tr><td>1|2<td><p>x<p>y</tr></table>z",
            "| a | b |\n| --- | --- |\n| 1\\|2 | x y |\n\nz",
        );
        check("<table><tr><td>a<td>b<tr><td>c</table>", "a | b\nc");
    }

    #[test]
    fn large_noise_keeps_the_page() {
        check("<script>if (a < b) '<p>'</script><style>p{}</style><nav><ul><li>Home</nav><p>x<footer>f</footer>", "x");
        check("<nav><a href=/>Home</a><main>text</main>", "text");
        check("<title>T  t</title><p>x", "# T t\n\nx");
        check("<title>T</title><h1>H</h1>", "# H");
    }

    #[test]
    fn hostile_pages_take_linear_time() {
        let deep = "<div>".repeat(200_000) + "x";
        check(&deep, "x");
        // In a tree every paragraph would repeat every unclosed mark.
        let unclosed: String = (0..20_000).map(|n| format!("<b a={n}>")).collect::<String>() + &"<p>x".repeat(20_000);
        let base = Url::parse("http://site.example/").expect("url");
        assert!(to_markdown(&unclosed, base).markdown.len() < unclosed.len() * 4);
        let quotes = "<blockquote>".repeat(5_000) + &"<br>x".repeat(5_000);
        let long = Url::parse(&format!("http://site.example/{}/", "d".repeat(1900))).expect("url");
        assert!(to_markdown(&(quotes + &"<a href=x>y</a>".repeat(5_000)), long).markdown.ends_with("times its size]"));
    }
}
