import { describe, expect, it } from "vitest";
import { problem, unquote, writeHeaders } from "./api";
import { bytes, duration } from "./ui/format";

describe("problem", () => {
  it("reads problem details", () => {
    const e = problem(409, JSON.stringify({ title: "Conflict", detail: "It is held.", code: "TERMINAL_HELD", retryable: false, request_id: "r1" }));
    expect(e).toMatchObject({ status: 409, code: "TERMINAL_HELD", message: "It is held.", retryable: false, requestId: "r1" });
  });
  it("copes with what isn't one", () => {
    expect(problem(502, "<html>bad gateway</html>")).toMatchObject({ status: 502, message: "HTTP 502", retryable: true });
    expect(problem(404, "{}")).toMatchObject({ message: "HTTP 404", code: "" });
  });
});

it("versions become conditions", () => {
  expect(writeHeaders("v1")["If-Match"]).toBe('"v1"');
  expect(writeHeaders("*")).toMatchObject({ "If-None-Match": "*" });
  expect(Object.keys(writeHeaders())).toEqual(["Content-Type"]);
  expect(unquote('"v1"')).toBe("v1");
  expect(unquote('W/"v1"')).toBe("v1");
});

it("numbers as people read them", () => {
  expect([0, 999, 1500, 12_345, 65_000, 3_720_000].map(duration)).toEqual(["0 ms", "999 ms", "1.5 s", "12 s", "1 min 5 s", "1 h 2 min"]);
  expect([0, 999, 1000, 12_345, 999_999, 5_000_000_000].map(bytes)).toEqual(["0 B", "999 B", "1.0 kB", "12 kB", "1.0 MB", "5.0 GB"]);
});
