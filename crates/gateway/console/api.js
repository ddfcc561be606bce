// The HTTP API: requests with the page's token, and the stream of events.

const KEY = "toolwright.token";
let token = localStorage.getItem(KEY);
let onSignedOut = () => {};

/** Called when the server does not know the page's token any more. */
export const whenSignedOut = (call) => { onSignedOut = call; };

/** Exchanges the token in the address for the page's own. Resolves to whether the page has one. */
export async function signIn() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return Boolean(token);
  history.replaceState(null, "", location.pathname + "#/overview");
  const response = await fetch("/console/session", { method: "POST", body: JSON.stringify({ token: given }) });
  if (!response.ok) return token ? true : Promise.reject(await failure(response));
  token = (await response.json()).token;
  localStorage.setItem(KEY, token);
  return true;
}

/** Whose page this is and what it may do, once it is signed in. */
export let me = { changes: false, roles: [], model_apis: [] };

/** Learns whose page this is. */
export async function learnMe() {
  me = await get("/api/me");
}

export class ApiError extends Error {
  constructor(status, kind, message) {
    super(message);
    Object.assign(this, { status, kind });
  }
}

async function failure(response) {
  const text = await response.text();
  try {
    const { kind, message } = JSON.parse(text).error;
    return new ApiError(response.status, kind, message);
  } catch {
    return new ApiError(response.status, "unknown", text || `The server answered ${response.status}.`);
  }
}

/** Sends a request and resolves to the JSON of its answer. */
export async function api(method, path, body, signal) {
  const headers = { authorization: `Bearer ${token}` };
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server does not answer. It may have stopped; the page tries again.");
  }
  if (response.status === 401) onSignedOut();
  if (!response.ok) {
    throw await failure(response);
  }
  return response.json();
}

export const get = (path, signal) => api("GET", path, undefined, signal);
export const del = (path) => api("DELETE", path);
export const post = (path, body = {}) => api("POST", path, body);

/** Calls `see` with each event, and `state` with "live" or "lost". Returns a function that ends it. */
export function follow(see, state) {
  const ending = new AbortController();
  let last = null;
  (async () => {
    let pause = 500;
    while (!ending.signal.aborted) {
      try {
        const headers = { authorization: `Bearer ${token}` };
        if (last !== null) headers["last-event-id"] = last;
        const response = await fetch("/api/events", { headers, signal: ending.signal });
        if (response.status === 401) return onSignedOut();
        if (response.status === 404) return;
        if (!response.ok) throw await failure(response);
        state("live");
        pause = 500;
        for await (const { id, data } of messages(response.body)) {
          last = id;
          see(JSON.parse(data));
        }
      } catch (error) {
        if (ending.signal.aborted) return;
      }
      state("lost");
      await new Promise((done) => setTimeout(done, pause));
      pause = Math.min(pause * 2, 10_000);
    }
  })();
  return () => ending.abort();
}

/** Sends a request whose answer comes in pieces: calls `see` with each. Resolves at the end. */
export async function stream(path, body, see, signal) {
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (response.status === 401) onSignedOut();
  if (!response.ok) throw await failure(response);
  for await (const { data } of messages(response.body)) if (data !== "[DONE]") see(JSON.parse(data));
}

async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const fields = {};
      for (const line of text.slice(0, end).split("\n")) {
        const at = line.indexOf(":");
        if (at > 0) fields[line.slice(0, at)] = line.slice(at + 1).trimStart();
      }
      text = text.slice(end + 2);
      if (fields.data) yield fields;
    }
  }
}
