//! The search engines for comparison, set up as their documentation recommends, for one thread.

use bm25::{Language, SearchEngine, SearchEngineBuilder};
use tantivy::collector::TopDocs;
use tantivy::query::QueryParser;
use tantivy::schema::{Field, IndexRecordOption, Schema, TextFieldIndexing, TextOptions};
use tantivy::tokenizer::{LowerCaser, SimpleTokenizer, Stemmer, StopWordFilter, TextAnalyzer};
use tantivy::{Index, IndexWriter, Searcher, TantivyDocument};

use super::catalogue::Record;
use crate::Failure;

/// The crate `tantivy`: stemmed fields with weights, in memory.
pub(super) struct Tantivy {
    searcher: Searcher,
    parser: QueryParser,
}

/// The memory for uncommitted documents, enough for every timed catalogue.
const WRITER_BYTES: usize = 500_000_000;

impl Tantivy {
    pub(super) fn build(tools: &[Record]) -> Result<Self, Failure> {
        let indexing =
            TextFieldIndexing::default().set_tokenizer("english").set_index_option(IndexRecordOption::WithFreqs);
        let options = TextOptions::default().set_indexing_options(indexing);
        let mut schema = Schema::builder();
        let weights: [(&str, f32); 5] =
            [("name", 3.0), ("description", 1.5), ("arguments", 1.0), ("server", 0.5), ("server_description", 0.5)];
        let fields: Vec<(Field, f32)> =
            weights.iter().map(|(name, weight)| (schema.add_text_field(name, options.clone()), *weight)).collect();
        let index = Index::create_in_ram(schema.build());
        let stop_words = StopWordFilter::new(tantivy::tokenizer::Language::English).ok_or("no English stop words")?;
        let english = TextAnalyzer::builder(SimpleTokenizer::default())
            .filter(LowerCaser)
            .filter(stop_words)
            .filter(Stemmer::new(tantivy::tokenizer::Language::English))
            .build();
        index.tokenizers().register("english", english);
        let mut writer: IndexWriter = index.writer_with_num_threads(1, WRITER_BYTES)?;
        for tool in tools {
            let arguments = tool.arguments();
            let texts = [&tool.name, &tool.description, &arguments, &tool.server, &tool.server_description];
            let mut document = TantivyDocument::default();
            for ((field, _), text) in fields.iter().zip(texts) {
                document.add_text(*field, text);
            }
            writer.add_document(document)?;
        }
        writer.commit()?;
        let mut parser = QueryParser::for_index(&index, fields.iter().map(|(field, _)| *field).collect());
        for (field, weight) in fields {
            parser.set_field_boost(field, weight);
        }
        Ok(Self { searcher: index.reader()?.searcher(), parser })
    }

    pub(super) fn search(&self, query: &str, limit: usize) -> usize {
        let (query, _) = self.parser.parse_query_lenient(query);
        self.searcher.search(&query, &TopDocs::with_limit(limit).order_by_score()).map_or(0, |found| found.len())
    }

    pub(super) fn bytes(&self) -> Option<u64> {
        Some(self.searcher.space_usage().ok()?.total().get_bytes())
    }
}

/// The crate `bm25`: one text for each tool.
pub(super) struct Bm25(SearchEngine<u32>);

impl Bm25 {
    pub(super) fn build(tools: &[Record]) -> Self {
        let texts = tools.iter().map(|tool| {
            let arguments = tool.arguments();
            [&*tool.name, &tool.description, &arguments, &tool.server, &tool.server_description].join(" ")
        });
        Self(SearchEngineBuilder::<u32>::with_corpus(Language::English, texts).build())
    }

    pub(super) fn search(&self, query: &str, limit: usize) -> usize {
        self.0.search(query, limit).len()
    }
}
