#!/usr/bin/env node
// Finds the program in the package for this platform and becomes it. Where Node cannot replace its process
// (Windows, and Node before 22.15), the program is a child that gets the same streams and signals.
"use strict";

const { spawn } = require("node:child_process");

const name = `@toolwright/${process.platform}-${process.arch}`;

function fail(message) {
  process.stderr.write(`toolwright: ${message}\n`);
  process.exit(1);
}

function find() {
  const file = process.platform === "win32" ? "toolwright.exe" : "toolwright";
  try {
    return require.resolve(`${name}/bin/${file}`);
  } catch {
    return fail(
      `the package ${name}, which holds the program for this platform, is not installed. ` +
        "Install again without --omit=optional; if there is no such package, build the program from its source.",
    );
  }
}

function asChild(program, args) {
  const child = spawn(program, args, { stdio: "inherit" });
  // A terminal sends these two to the child itself.
  const forwarded = process.stdin.isTTY ? ["SIGTERM", "SIGHUP"] : ["SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT"];
  for (const signal of ["SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT"]) {
    process.on(signal, () => {
      if (forwarded.includes(signal)) child.kill(signal);
    });
  }
  child.on("error", (error) => fail(`cannot start ${program}: ${error.message}`));
  child.on("exit", (code, signal) => {
    if (signal === null) process.exit(code);
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  });
}

const program = find();
const args = process.argv.slice(2);
if (typeof process.execve === "function" && process.platform !== "win32") {
  process.execve(program, [program, ...args], process.env);
} else {
  asChild(program, args);
}
