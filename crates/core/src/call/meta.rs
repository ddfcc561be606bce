//! Separates the meta fields from the arguments of our own tools, checks them, restores them for a repair by a model,
//! and decides who runs the call.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::arguments::{FittedArguments, fit};
use super::variables::{KnownValue, MARK, VariableKind, Variables, scope};
use super::{Provenance, ValidCall};
use crate::catalogue::{DefinitionOrigin, Entry, Snapshot};
use crate::error::{ErrorKind, ToolError};
use crate::identity::name_table::Resolution;
use crate::model::call_meta::{
    ACTIVITY, DELEGATE, INSTANCE, OUTPUT, OUTPUT_METHOD, OUTPUT_PATH, REASONING, SCOPES, TOOL,
};
use crate::schema::Violation;
use crate::store::state_path;

pub use crate::model::call_meta::{CallMeta, META_FIELDS, Method, Route, is_meta_field};

/// The methods that a call can name.
const METHODS: [Method; 5] = [Method::Set, Method::Merge, Method::Assign, Method::Push, Method::Concat];

fn violation(path: &str, message: impl Into<String>) -> Violation {
    Violation { path: format!("/{path}"), keyword: "meta".into(), message: message.into() }
}

/// Moves meta fields from `arguments` to `meta`, if the tool is our own, and adds those fixed by its schema. A field
/// that the schema does not show, or a value that it does not allow, is a violation.
///
/// In a request over many inputs a call may name its instance.
pub(crate) fn extract_meta(
    entry: &Entry,
    arguments: &mut Value,
    meta: &mut CallMeta,
    has_instances: bool,
) -> Vec<Violation> {
    let fields = &entry.definition().call_fields;
    let mut found = take_runner_fields(meta);
    if let Some(members) = arguments.as_object_mut().filter(|_| entry.tool.origin() == DefinitionOrigin::Own) {
        let names: Vec<String> = members.keys().filter(|name| is_meta_field(name)).cloned().collect();
        found.extend(names.into_iter().filter_map(|name| members.shift_remove_entry(&name)));
    }
    if found.is_empty() && fields.is_empty() {
        return Vec::new();
    }
    let mut violations = Vec::new();
    let mut written = Map::new();
    for (name, value) in found {
        match name.as_str() {
            // The tool was resolved by its name.
            TOOL => {}
            // Whether an output is allowed is known once the route is known.
            OUTPUT => meta.output = Some(value),
            name if is_fixed(entry, name, &value) => {}
            INSTANCE if has_instances && !entry.targets_run() && !fields.contains_key(INSTANCE) => {
                violations.extend(set(meta, INSTANCE, &value).err().map(|why| violation(INSTANCE, why)));
            }
            name if fields.contains_key(name) => drop(written.insert(name.to_owned(), value)),
            name => violations.push(violation(name, format!("{} takes no `{name}`; leave it out", entry.wire_name))),
        }
    }
    for (name, field) in fields {
        let fixed = field.get("const").or_else(|| field.get("default").filter(|_| !is_set(meta, name)));
        if let Some(value) = fixed.filter(|_| !written.contains_key(name)) {
            written.insert(name.clone(), value.clone());
        }
    }
    let written = Value::Object(written);
    if let Ok(Some(schema)) = entry.tool.call_fields() {
        violations.extend(schema.violations(&written));
    }
    for (name, value) in written.as_object().into_iter().flatten() {
        if let Err(why) = set(meta, name, value) {
            violations.push(violation(name, why));
        }
    }
    violations
}

/// Returns the meta fields about who runs the call, for carriers too: nobody may set a field that the tool does not
/// show. The output and its path belong to the carrier itself.
fn take_runner_fields(meta: &mut CallMeta) -> Map<String, Value> {
    let texts = [(ACTIVITY, meta.activity.take()), (DELEGATE, meta.delegate.take())];
    let mut found: Map<String, Value> =
        texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?.into()))).collect();
    let scopes = std::mem::take(&mut meta.scopes);
    if !scopes.is_empty() {
        found.insert(SCOPES.into(), scopes.into());
    }
    found
}

/// Whether the tool's definition fixes the field to this value.
fn is_fixed(entry: &Entry, name: &str, value: &Value) -> bool {
    let definition = entry.definition();
    match name {
        ACTIVITY => definition.activity.as_deref() == value.as_str() && value.is_string(),
        DELEGATE => definition.delegate.as_ref() == Some(value),
        _ => false,
    }
}

fn is_set(meta: &CallMeta, name: &str) -> bool {
    match name {
        REASONING => meta.reasoning.is_some(),
        ACTIVITY => meta.activity.is_some(),
        DELEGATE => meta.delegate.is_some(),
        OUTPUT_PATH => meta.output_path.is_some(),
        OUTPUT_METHOD => meta.output_method != Method::default(),
        INSTANCE => meta.instance.is_some(),
        SCOPES => !meta.scopes.is_empty(),
        _ => false,
    }
}

/// Sets a meta field. Null counts as not set.
fn set(meta: &mut CallMeta, name: &str, value: &Value) -> Result<(), String> {
    if value.is_null() {
        return Ok(());
    }
    let text = || value.as_str().map(str::to_owned).ok_or_else(|| "must be a string".to_owned());
    match name {
        REASONING => meta.reasoning = Some(text()?),
        ACTIVITY => meta.activity = Some(text()?),
        // An empty name means no delegate.
        DELEGATE => meta.delegate = Some(text()?).filter(|name| !name.is_empty()),
        OUTPUT_PATH => meta.output_path = Some(text()?),
        INSTANCE => meta.instance = Some(text()?),
        OUTPUT_METHOD => {
            let method_names = || METHODS.map(Method::as_str).join(", ");
            let method = Method::parse(&text()?).filter(|method| METHODS.contains(method));
            meta.output_method = method.ok_or_else(|| format!("must be one of {}", method_names()))?;
        }
        SCOPES => {
            let scopes: Option<Vec<String>> = match value {
                Value::String(one) => Some(vec![one.clone()]),
                Value::Array(all) => all.iter().map(|one| one.as_str().map(str::to_owned)).collect(),
                _ => None,
            };
            meta.scopes = scopes.ok_or("must be an array of strings")?;
        }
        _ => {}
    }
    Ok(())
}

/// Removes the meta fields from the object of a call whose carrier writes them beside the parameters.
///
/// # Errors
/// A [`Violation`] for each illegal value.
pub fn take(members: &mut Map<String, Value>) -> Result<CallMeta, Vec<Violation>> {
    let (mut meta, mut violations) = (CallMeta::default(), Vec::new());
    for name in META_FIELDS.into_iter().filter(|name| *name != TOOL) {
        match members.shift_remove(name) {
            None => {}
            Some(value) if name == OUTPUT => meta.output = Some(value),
            Some(value) => {
                if let Err(why) = set(&mut meta, name, &value) {
                    violations.push(violation(name, why));
                }
            }
        }
    }
    if violations.is_empty() { Ok(meta) } else { Err(violations) }
}

/// The arguments with the meta fields that a model wrote among them, as its tool's schema shows them.
pub(crate) fn with_meta_fields(entry: &Entry, arguments: &Value, meta: &CallMeta) -> Value {
    let mut joined = arguments.clone();
    if let (Some(members), Ok(Value::Object(mut meta_fields))) = (joined.as_object_mut(), serde_json::to_value(meta)) {
        meta_fields.retain(|name, _| name == OUTPUT || entry.definition().call_fields.contains_key(name));
        members.extend(meta_fields);
    }
    joined
}

/// Returns who runs a call, by the first that applies: the delegate; the activity named by the call or its tool (an
/// empty name means none); the tool's own code; an activity with the tool's name. Otherwise nobody runs it, and the
/// call carries its output.
///
/// # Errors
/// A [`Violation`] for an activity that is not in the catalogue.
pub fn route(entry: &Entry, meta: &CallMeta, snapshot: &Snapshot) -> Result<Route, Violation> {
    let route = match (&meta.delegate, entry.route(), meta.activity.as_deref()) {
        (Some(delegate), ..) => Route::Delegate(delegate.clone()),
        (None, delegate @ Route::Delegate(_), _) => delegate.clone(),
        (None, _, Some("")) => Route::Latent,
        (None, _, Some(activity)) => Route::Activity(activity.to_owned()),
        (None, route, None) => route.clone(),
    };
    let Route::Activity(name) = &route else { return Ok(route) };
    match snapshot.resolve(name) {
        Resolution::Found(index, _) => {
            let activity = &snapshot.list()[index];
            match activity.route() {
                _ if activity.id() == entry.id() && entry.provider.implements(entry.id()) => Ok(Route::Tool),
                // Only one level: otherwise activities could run each other without end.
                Route::Tool => Ok(Route::Activity(activity.id().to_string())),
                _ => Err(violation(ACTIVITY, format!("`{name}` has no code of its own; name a tool that has"))),
            }
        }
        Resolution::Unknown(_) => Err(violation(ACTIVITY, format!("no activity is called `{name}`"))),
    }
}

/// Checks the output that came with a call of this `route`: a latent call must have one that fits the output schema,
/// which is coerced if needed; other calls may not have one.
pub(crate) fn check_output(
    entry: &Entry,
    meta: &mut CallMeta,
    route: &Route,
    coerced: &mut Provenance,
) -> Vec<Violation> {
    if *route != Route::Latent {
        return match meta.output.take() {
            None => Vec::new(),
            Some(_) => vec![violation(OUTPUT, "the tool gives the result itself; leave it out")],
        };
    }
    let schema = match entry.tool.output_schema() {
        Ok(Some(schema)) => schema,
        Ok(None) => return Vec::new(),
        Err(error) => return vec![violation(OUTPUT, format!("no result can be checked: {error}"))],
    };
    let Some(output) = meta.output.take() else {
        return vec![violation(OUTPUT, "it is missing: nobody else answers this call, so write its result here")];
    };
    let FittedArguments { arguments, provenance, violations, .. } = fit(schema, output, Provenance::default());
    let inside = |path: String| format!("/{OUTPUT}{path}");
    coerced.coerced.extend(provenance.coerced.into_iter().map(inside));
    meta.output = Some(arguments);
    violations.into_iter().map(|found| Violation { path: inside(found.path), ..found }).collect()
}

impl CallMeta {
    /// Returns the state path and instance that the output is written to.
    #[must_use]
    pub fn writes(&self) -> Option<(&str, Option<&str>)> {
        Some((state_path(self.output_path.as_deref()?)?, self.instance.as_deref()))
    }

    /// Returns the values of the scopes, keyed by name without the mark, in order; `None` for missing values.
    ///
    /// # Errors
    /// `invalid_parameters` for an unknown scope.
    pub fn granted(
        &self,
        variables: Option<&dyn Variables>,
    ) -> Result<BTreeMap<String, Option<KnownValue>>, ToolError> {
        let value = |name: &String| {
            let (kind, path) = scope(name).ok_or_else(|| {
                let message = format!("there is no scope `{name}`: write input, state or scratch, or a path in one");
                ToolError::new(ErrorKind::InvalidParameters, message)
            })?;
            let value = variables.and_then(|values| values.get(kind, &path, self.instance.as_deref()));
            Ok((name.trim_start_matches(MARK).to_owned(), value))
        };
        self.scopes.iter().map(value).collect()
    }

    /// The paths of the state that the scopes show.
    pub fn seen_state(&self) -> impl Iterator<Item = Vec<&str>> {
        let state = |text| scope(text).filter(|(kind, _)| *kind == VariableKind::State);
        self.scopes.iter().filter_map(move |text| Some(state(text)?.1))
    }
}

impl ValidCall {
    /// Whether it makes or awaits other calls while it runs, so it may hold no slot or lock.
    #[must_use]
    pub fn awaits_others(&self) -> bool {
        let route = &self.provenance.route;
        route.awaits_others() || (route.is_tool() && self.entry.provider.awaits_others(self.entry.id()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::call::{Caller, RawArguments, Rejection, ToolCall, check};
    use crate::catalogue::declared::DeclaredTools;
    use crate::catalogue::{Listing, ProviderKind, RegisteredTool};
    use crate::definition::ToolDefinition;
    use crate::identity::session::{CallId, Principal};
    use crate::identity::tool_id::ToolId;
    use crate::testing::{listing, of_kind};

    fn sentiment() -> Value {
        json!({
            "type": "object",
            "description": "Analyzes text sentiment",
            "properties": {
                "_tool": {"type": "string", "const": "sentimentAnalysis"},
                "text": {"type": "string", "description": "Text to analyze"},
                "_output": {
                    "type": "object",
                    "properties": {"sentiment": {"type": "string"}, "confidence": {"type": "number"}},
                },
            },
        })
    }

    fn declared(tools: &[(&str, Value)]) -> Listing {
        let provider = Arc::new(DeclaredTools::new("schemas", tools.iter().map(|(name, schema)| (*name, schema))));
        let issues: Vec<String> = crate::catalogue::Provider::issues(&*provider);
        assert_eq!(issues, [""; 0]);
        Listing { tools: provider.tools().to_vec(), provider, error: None, withheld: Vec::new() }
    }

    fn coded(id: &str, parameters: Value) -> Arc<RegisteredTool> {
        let definition = ToolDefinition::new(ToolId::parse(id).expect("id"), "", Some(parameters));
        RegisteredTool::own(definition).expect("registers")
    }

    /// Declared tools, our own tools with code, and a foreign one.
    fn snapshot(tools: &[(&str, Value)]) -> Snapshot {
        let anything = json!({"type": "object"});
        let own = vec![coded("act:greet@1.0.0", anything.clone()), coded("act:send@1.0.0", anything.clone())];
        let foreign = ToolDefinition::new(ToolId::parse("mail:post@0.0.0").expect("id"), "", Some(anything));
        Snapshot::build(&[
            declared(tools),
            listing("own", own),
            of_kind("agent", ProviderKind::Builtin, vec![coded("agent:report@1.0.0", json!({"type": "object"}))]),
            listing("mail", vec![RegisteredTool::foreign(foreign, "post")]),
        ])
    }

    /// A request over two inputs.
    struct TwoInputs([String; 2]);

    impl Variables for TwoInputs {
        fn get(&self, _kind: VariableKind, _path: &[&str], _instance: Option<&str>) -> Option<KnownValue> {
            None
        }

        fn instances(&self) -> &[String] {
            &self.0
        }
    }

    fn call(snapshot: &Snapshot, name: &str, arguments: Value, meta: CallMeta) -> Result<ValidCall, Box<Rejection>> {
        let call = ToolCall::new(CallId::new("c"), name, RawArguments::Value(arguments)).with_meta(meta);
        let inputs = TwoInputs(["①".into(), "②".into()]);
        check(call, snapshot, Caller { principal: &Principal::owner(), variables: Some(&inputs) })
    }

    fn routed(snapshot: &Snapshot, name: &str, arguments: Value) -> Route {
        call(snapshot, name, arguments, CallMeta::default()).expect("valid").provenance.route
    }

    fn rejected(snapshot: &Snapshot, name: &str, arguments: Value, fragment: &str) {
        let rejection = call(snapshot, name, arguments.clone(), CallMeta::default()).expect_err("rejected");
        assert!(rejection.to_string().contains(fragment), "{arguments}: {rejection}");
    }

    #[test]
    fn calls_over_many_inputs_name_theirs() {
        let snapshot = snapshot(&[]);
        let valid = call(&snapshot, "act__greet", json!({"_instance": "②"}), CallMeta::default()).expect("valid");
        assert_eq!((valid.meta.instance.as_deref(), valid.arguments), (Some("②"), json!({})));
        rejected(&snapshot, "act__greet", json!({"_instance": "③"}), "there is no instance `③`");
        let foreign = call(&snapshot, "post", json!({"_instance": "②"}), CallMeta::default()).expect("valid");
        assert_eq!((foreign.meta.instance, foreign.arguments), (None, json!({"_instance": "②"})));
        rejected(&snapshot, "agent__report", json!({"_instance": "②"}), "agent__report takes no `_instance`");
    }

    #[test]
    fn the_output_of_a_latent_call_is_checked() {
        let snapshot = snapshot(&[("sentimentAnalysis", sentiment())]);
        let near = json!({"text": "x", "_output": {"sentiment": "positive", "confidence": "0.99"}});
        let coerced = call(&snapshot, "sentimentAnalysis", near, CallMeta::default()).expect("valid");
        assert_eq!(
            (coerced.provenance.coerced.as_slice(), coerced.arguments),
            (&["/_output/confidence".into()][..], json!({"text": "x"}))
        );
        rejected(&snapshot, "schema__sentimentAnalysis", json!({"text": "x"}), "/_output: it is missing");
        let bad = json!({"text": "x", "_output": {"sentiment": ["positive"]}});
        rejected(&snapshot, "schema__sentimentAnalysis", bad, "/_output/sentiment");
    }

    #[test]
    fn the_first_route_that_applies_counts() {
        let tool = |fields: Value| {
            let mut schema = json!({"type": "object", "properties": {"_output": {"type": "string"}}});
            schema["properties"].as_object_mut().expect("object").extend(fields.as_object().expect("object").clone());
            schema
        };
        let snapshot = snapshot(&[
            ("greet", tool(json!({}))),
            ("named", tool(json!({"_activity": {"const": "act__send"}}))),
            ("mailed", tool(json!({"_activity": {"const": "mail__post"}}))),
            ("forced", tool(json!({"_activity": {"const": ""}}))),
            ("chosen", tool(json!({"_activity": {"enum": ["act__send", ""]}}))),
            ("given", tool(json!({"_delegate": {"const": "anonymous"}, "_activity": {"const": "act__send"}}))),
            ("post", tool(json!({}))),
        ]);
        let send = || Route::Activity("act:send@1.0.0".into());
        assert_eq!(routed(&snapshot, "schema__greet", json!({})), Route::Activity("act:greet@1.0.0".into()));
        assert_eq!(routed(&snapshot, "act__greet", json!({})), Route::Tool);
        assert_eq!(routed(&snapshot, "schema__named", json!({})), send());
        assert_eq!(routed(&snapshot, "schema__mailed", json!({})), Route::Activity("mail:post@0.0.0".into()));
        assert_eq!(routed(&snapshot, "schema__forced", json!({"_output": "x"})), Route::Latent);
        assert_eq!(routed(&snapshot, "schema__chosen", json!({"_activity": "act__send"})), send());
        assert_eq!(routed(&snapshot, "schema__chosen", json!({"_activity": "", "_output": "x"})), Route::Latent);
        assert_eq!(routed(&snapshot, "schema__given", json!({})), Route::Delegate("anonymous".into()));
        // A foreign tool that shares the name does not become the activity.
        assert_eq!(routed(&snapshot, "schema__post", json!({"_output": "x"})), Route::Latent);

        let hidden = snapshot.list()[0].shown_schema();
        assert_eq!(hidden, json!({"type": "object", "properties": {}}));
        rejected(
            &snapshot,
            "schema__greet",
            json!({"_output": "made up"}),
            "/_output: the tool gives the result itself",
        );
        rejected(&snapshot, "schema__chosen", json!({"_activity": "mail__post"}), "/_activity");
        rejected(&snapshot, "schema__greet", json!({"_activity": "act__send"}), "takes no `_activity`");
    }

    #[test]
    fn models_set_only_what_is_shown() {
        let schema = json!({
            "type": "object",
            "properties": {
                "_outputPath": {"type": "string", "default": "found"},
                "_outputMethod": {"enum": ["set", "push"]},
                "_instance": {"const": "①"},
                "_scopes": {"type": "array", "items": {"enum": ["input", "state.user"]}},
                "_reasoningForCall": {"type": "string"},
            },
        });
        let snapshot = snapshot(&[("note", schema)]);
        let shown = snapshot.list()[0].shown_schema();
        let names: Vec<&String> = shown["properties"].as_object().expect("properties").keys().collect();
        assert_eq!(names, ["_reasoningForCall", "_outputPath", "_outputMethod", "_scopes"]);
        let written = json!({"_outputMethod": "push", "_scopes": ["input"], "_reasoningForCall": "why"});
        let meta = call(&snapshot, "note", written, CallMeta::default()).expect("valid").meta;
        let expect = json!({
            "_reasoningForCall": "why", "_outputPath": "found", "_outputMethod": "push", "_instance": "①",
            "_scopes": ["input"],
        });
        assert_eq!(json!(meta), expect);
        rejected(&snapshot, "schema__note", json!({"_scopes": ["scratch"]}), "/_scopes");
        rejected(&snapshot, "schema__note", json!({"_instance": "②"}), "/_instance");
        rejected(&snapshot, "act__send", json!({"_outputPath": "a"}), "takes no `_outputPath`");
    }

    #[test]
    fn foreign_tools_keep_every_property() {
        let snapshot = snapshot(&[]);
        let arguments = json!({"_id": 1, "_output": 2, "_activity": "act__send", "_tool": "x"});
        let valid = call(&snapshot, "mail__post", arguments.clone(), CallMeta::default()).expect("valid");
        assert_eq!((valid.arguments, valid.meta.is_empty(), valid.provenance.route), (arguments, true, Route::Tool));
    }

    #[test]
    fn carrier_tools_route_their_results() {
        let snapshot = snapshot(&[]);
        let mut item = json!({"_tool": "mail__post", "_outputPath": "sent", "_outputMethod": "concat", "to": "a"});
        let meta = take(item.as_object_mut().expect("object")).expect("legal");
        assert_eq!(item, json!({"_tool": "mail__post", "to": "a"}));
        let valid = call(&snapshot, "mail__post", json!({"to": "a"}), meta.clone()).expect("valid");
        assert_eq!(valid.meta, meta);
        let forged = CallMeta { activity: Some("act__send".into()), ..meta };
        let rejection = call(&snapshot, "mail__post", json!({}), forged).expect_err("rejected");
        assert!(rejection.to_string().contains("takes no `_activity`"), "{rejection}");
        let mut bad = json!({"_outputMethod": "delete"});
        assert_eq!(take(bad.as_object_mut().expect("object")).expect_err("illegal")[0].path, "/_outputMethod");
    }

    #[test]
    fn repair_is_shown_the_output_too() {
        let snapshot = snapshot(&[("sentimentAnalysis", sentiment())]);
        let written = json!({"text": "x", "_output": {"sentiment": ["positive"]}});
        let rejection =
            call(&snapshot, "schema__sentimentAnalysis", written.clone(), CallMeta::default()).expect_err("bad");
        let request = crate::call::model_repair::request(&rejection).expect("worth it");
        let shown = serde_json::to_string(&request.messages).expect("json").replace('\\', "");
        assert!(shown.contains(&written.to_string()) && shown.contains("\"required\":[\"_output\"]"), "{shown}");
        let mended = json!({"text": "x", "_output": {"sentiment": "positive"}});
        let again = crate::call::model_repair::retry(&rejection, mended);
        let valid = check(again, &snapshot, Caller::of(&Principal::owner())).expect("valid");
        assert_eq!(valid.meta.output, Some(json!({"sentiment": "positive"})));
    }
}
