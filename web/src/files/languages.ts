// Which language a file is in, loaded when one is opened.

import { StreamLanguage } from "@codemirror/language";
import type { Extension } from "@codemirror/state";
import { extension } from "./document";
import { basename } from "./paths";

type Load = () => Promise<Extension>;

const js = (o: object): Load => () => import("@codemirror/lang-javascript").then((m) => m.javascript(o));
const shell: Load = () => import("@codemirror/legacy-modes/mode/shell").then((m) => StreamLanguage.define(m.shell));
const properties: Load = () => import("@codemirror/legacy-modes/mode/properties").then((m) => StreamLanguage.define(m.properties));
const cpp: Load = () => import("@codemirror/lang-cpp").then((m) => m.cpp());
const html: Load = () => import("@codemirror/lang-html").then((m) => m.html());
const yaml: Load = () => import("@codemirror/lang-yaml").then((m) => m.yaml());
const markdown: Load = () => import("@codemirror/lang-markdown").then((m) => m.markdown());
const python: Load = () => import("@codemirror/lang-python").then((m) => m.python());
const json: Load = () => import("@codemirror/lang-json").then((m) => m.json());

const byExtension: Record<string, Load> = {
  js: js({}), mjs: js({}), cjs: js({}), jsx: js({ jsx: true }), ts: js({ typescript: true }), mts: js({ typescript: true }), tsx: js({ typescript: true, jsx: true }),
  py: python, pyi: python,
  go: () => import("@codemirror/lang-go").then((m) => m.go()),
  rs: () => import("@codemirror/lang-rust").then((m) => m.rust()),
  java: () => import("@codemirror/lang-java").then((m) => m.java()),
  c: cpp, h: cpp, cc: cpp, cpp, hpp: cpp,
  json, jsonl: json, webmanifest: json,
  html, htm: html, vue: html, svg: html, xml: html,
  css: () => import("@codemirror/lang-css").then((m) => m.css()),
  md: markdown, markdown,
  yml: yaml, yaml,
  sql: () => import("@codemirror/lang-sql").then((m) => m.sql()),
  sh: shell, bash: shell, zsh: shell,
  toml: () => import("@codemirror/legacy-modes/mode/toml").then((m) => StreamLanguage.define(m.toml)),
  diff: () => import("@codemirror/legacy-modes/mode/diff").then((m) => StreamLanguage.define(m.diff)),
  rb: () => import("@codemirror/legacy-modes/mode/ruby").then((m) => StreamLanguage.define(m.ruby)),
  ini: properties, env: properties, conf: properties, properties,
};

const docker: Load = () => import("@codemirror/legacy-modes/mode/dockerfile").then((m) => StreamLanguage.define(m.dockerFile));

const byName: Record<string, Load> = { Dockerfile: docker, Containerfile: docker, ".bashrc": shell, ".profile": shell, ".env": properties };

export function language(path: string): Promise<Extension> {
  const load = byName[basename(path)] ?? byExtension[extension(path)];
  return load ? load() : Promise.resolve([]);
}
