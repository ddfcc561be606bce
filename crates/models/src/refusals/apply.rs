//! Rewrites a request into the form that its server takes.

use std::borrow::Cow;

use toolwright_core::model::{ModelRequest, ModelSettings, OutputFormat};

use super::table::{PARAMETERS, patterns_in_words, this_shape};
use super::{Form, Forms};
use crate::anthropic;
use crate::api::{Api, EncodedRequest};
use crate::request::with_instruction;

impl Forms {
    /// The request, its answer's shape in words where `api` or its model is known to refuse to hold it to that. An object is
    /// asked for as JSON at least, where that is not refused too.
    pub(crate) fn around<'a>(&self, api: Api, request: Cow<'a, ModelRequest>) -> Cow<'a, ModelRequest> {
        let beside_tools = !request.tools.is_empty() && self.has(Form::NoShapeBesideTools);
        let Some(output) = request.output.as_ref().filter(|output| beside_tools || self.refuse(output)) else {
            return request;
        };
        let system = with_instruction(&request.system, output);
        let is_object = output.schema.as_ref().is_some_and(|schema| schema["type"] == "object");
        let has_json = api != Api::Anthropic && is_object && !beside_tools && !self.has(Form::Json);
        let output = has_json.then(|| OutputFormat { name: output.name.clone(), schema: None });
        Cow::Owned(ModelRequest { system, output, ..request.into_owned() })
    }

    fn refuse(&self, output: &OutputFormat) -> bool {
        match &output.schema {
            Some(_) if self.all.is_empty() => false,
            Some(_) => self.has(Form::Schemas) || self.has(this_shape(output)),
            None => self.has(Form::Json),
        }
    }

    /// Whether a limit of an answer with room to think is one that was refused; `question` is what else takes of the
    /// window.
    pub(crate) fn refuse_limit(&self, limit: u32, question: impl Fn() -> usize) -> bool {
        self.all.iter().any(|form| match *form {
            Form::LimitUnder(most) => limit >= most,
            Form::WindowUnder(most) => question().saturating_add(limit as usize) >= most,
            _ => false,
        })
    }

    /// Changes what is sent of a request with these settings.
    pub(crate) fn apply(&self, settings: &ModelSettings, encoded: &mut EncodedRequest) {
        self.apply_always(encoded);
        // What is left out changes what the others stand beside. Each round leaves one out of few.
        let of_value = |encoded: &EncodedRequest| {
            self.all.iter().find_map(|form| match form {
                Form::WithoutAs(at, how) if how.holds(*at, encoded, settings) => Some(*at),
                _ => None,
            })
        };
        while let Some(at) = of_value(encoded) {
            leave_out(at, encoded);
        }
    }

    fn apply_always(&self, encoded: &mut EncodedRequest) {
        for form in &self.all {
            match form {
                Form::OlderLimit => encoded.rename("max_completion_tokens", "max_tokens"),
                Form::NoPatterns => encoded.map_schemas(patterns_in_words),
                Form::NoThoughtsBack => encoded.leave_out("include"),
                Form::DropForeignThoughts => anthropic::drop_foreign_thinking(encoded),
                Form::Without(at) => leave_out(*at, encoded),
                Form::WithoutAs(..)
                | Form::Schema(_)
                | Form::Schemas
                | Form::Json
                | Form::NoShapeBesideTools
                | Form::NoEffort
                | Form::SilentEffort
                | Form::LimitUnder(_)
                | Form::WindowUnder(_) => {}
            }
        }
    }
}

/// Leaves the parameter at this place out, by all its names.
fn leave_out(at: usize, encoded: &mut EncodedRequest) {
    PARAMETERS.get(at).into_iter().copied().flatten().for_each(|name| encoded.leave_out(name));
}
