// Package reference_test keeps the generated pages of docs/reference true: it
// makes each again from the code and compares. With -update it writes them.
package reference_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/app"
	"github.com/astrabox/astrabox/internal/cli"
	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi"
	_ "github.com/astrabox/astrabox/provider/all"
	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform"
)

var update = flag.Bool("update", false, "write the pages instead of comparing")

func TestReference(t *testing.T) {
	for name, make := range map[string]func(*testing.T) []byte{
		"openapi.json":    openAPI,
		"errors.md":       errorCodes,
		"capabilities.md": capabilities,
		"settings.md":     settings,
		"cli.md":          commandLine,
		"clauses.md":      clauses,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("../../docs/reference", name)
			want := make(t)
			if *update {
				if err := os.WriteFile(path, want, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			got, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(got), string(want)); d != "" {
				t.Errorf("the page isn't what the code says; run: go test ./test/reference -update\n%s", d)
			}
		})
	}
}

func openAPI(t *testing.T) []byte {
	s, err := httpapi.New(httpapi.Config{Version: "dev"})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, s.OpenAPI(), "", "  "); err != nil {
		t.Fatal(err)
	}
	b.WriteByte('\n')
	return b.Bytes()
}

func errorCodes(*testing.T) []byte {
	var b bytes.Buffer
	b.WriteString("# Error codes\n\nMade from the catalogue in `internal/fault`. A failed request is a problem document (RFC 9457) with `code`, `retryable` and `request_id`.\n\n")
	b.WriteString("| code | HTTP | retryable | sentence |\n| --- | --- | --- | --- |\n")
	for _, e := range fault.Catalogue() {
		fmt.Fprintf(&b, "| `%s` | %d | %s | %s |\n", e.Code, e.Status, yes(e.Retryable), e.Public)
	}
	return b.Bytes()
}

func yes(v bool) string {
	if v {
		return "yes"
	}
	return "no"
}

func drivers(t *testing.T) []sandbox.Driver {
	all, err := sandbox.Installed()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func capabilities(t *testing.T) []byte {
	var b bytes.Buffer
	b.WriteString("# Capabilities\n\nMade from `sandbox.Rules`. A provider that declares a flag must implement what its row names.\n\n| flag | what it gives | the provider implements |")
	all := drivers(t)
	for _, d := range all {
		fmt.Fprintf(&b, " %s |", d.Name)
	}
	b.WriteString("\n| --- | --- | --- |" + strings.Repeat(" --- |", len(all)) + "\n")
	for _, r := range sandbox.Rules() {
		fmt.Fprintf(&b, "| %s | %s | %s |", r.Flag, r.Doc, r.Needs)
		for _, d := range all {
			fmt.Fprintf(&b, " %s |", yes(r.Declared(d.Declares)))
		}
		b.WriteByte('\n')
	}
	b.WriteString("\n## What is refused without them\n\n`ASTRABOX_SANDBOX_DISABLE` takes a capability as not declared. Configuration that needs a missing one is refused when it is saved (`sandbox.CheckEnvironment`). The Environment `local` is AstraBox's own and saved by nobody: on a backend without network rules its sandboxes have the network that the backend gives them, and the bundled service gives none.\n\n| flag | without it | code |\n| --- | --- | --- |\n")
	for _, r := range sandbox.Rules() {
		fmt.Fprintf(&b, "| %s | %s | `%s` |\n", r.Flag, r.Without, r.Code)
	}
	b.WriteString("\n## Operations without a flag\n\nMade from `sandbox.Optionals`. A provider has them or not.\n\n| name | what it gives | the provider implements | can be disabled |\n| --- | --- | --- | --- |\n")
	for _, o := range sandbox.Optionals() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", o.Field, o.Doc, o.Needs, yes(!o.Fixed))
	}
	b.WriteString("\n## Permission levels\n\n| provider | levels |\n| --- | --- |\n")
	for _, d := range all {
		fmt.Fprintf(&b, "| %s | %v |\n", d.Name, d.Declares.Levels())
	}
	return b.Bytes()
}

func settings(t *testing.T) []byte {
	var b bytes.Buffer
	b.WriteString("# Settings of backends\n\nMade from the code. `astrabox serve --help` has the server's own.\n")
	table := func(title string, list []sandbox.Setting) {
		fmt.Fprintf(&b, "\n## %s\n\n| variable | secret | |\n| --- | --- | --- |\n", title)
		for _, s := range list {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Name, yes(s.Secret), s.Doc)
		}
	}
	table("Which backends", app.BackendSettings())
	for _, d := range drivers(t) {
		table("The provider "+d.Name, d.Settings)
	}
	return b.Bytes()
}

func clauses(*testing.T) []byte {
	var b bytes.Buffer
	b.WriteString("# Clauses of the sandbox contract\n\nMade from `sandbox/conform`. `astrabox provider verify` and `sandboxtest` try each of them; one with a flag is tried where the provider declares the flag, and elsewhere its refusal is.\n")
	var areas []string
	rows := map[string]string{}
	for _, c := range conform.Clauses() {
		area, _, _ := strings.Cut(c.ID, ".")
		if rows[area] == "" {
			areas = append(areas, area)
		}
		rows[area] += fmt.Sprintf("| `%s` | %s | %s |\n", c.ID, c.Capability, c.Doc)
	}
	for _, area := range areas {
		fmt.Fprintf(&b, "\n## %s\n\n| clause | flag | promise |\n| --- | --- | --- |\n%s", area, rows[area])
	}
	return b.Bytes()
}

// The guide shows code that is compiled and tested elsewhere, word for word.
func TestGuideQuotesWhatRuns(t *testing.T) {
	guide, err := os.ReadFile("../../docs/guide-add-a-provider.md")
	if err != nil {
		t.Fatal(err)
	}
	var code []byte
	for _, name := range []string{"closet_test.go", "example_test.go"} {
		b, err := os.ReadFile(filepath.Join("../../sandbox/sandboxtest", name))
		if err != nil {
			t.Fatal(err)
		}
		code = append(code, b...)
	}
	blocks := strings.Split(string(guide), "```")
	quoted := 0
	for i := 1; i < len(blocks); i += 2 {
		block, ok := strings.CutPrefix(blocks[i], "go\n")
		if !ok {
			continue
		}
		quoted++
		if !strings.Contains(string(code), block) {
			t.Errorf("the guide shows what isn't in sandbox/sandboxtest:\n%s", block)
		}
	}
	if quoted < 5 {
		t.Errorf("only %d blocks of Go", quoted)
	}
}

// commandLine prints the help of every command, found by walking the help itself.
func commandLine(t *testing.T) []byte {
	var b bytes.Buffer
	b.WriteString("# Command line\n\nMade from the program's own help.\n")
	var walk func(path []string)
	walk = func(path []string) {
		var out, errs bytes.Buffer
		code := cli.Main(t.Context(), append(append([]string{}, path...), "--help"), cli.System{
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" },
			Executable: "/usr/bin/astrabox", Terminal: func(any) bool { return false },
		})
		if code != cli.ExitOK {
			t.Fatalf("%v --help: status %d: %s", path, code, errs.String())
		}
		fmt.Fprintf(&b, "\n## %s\n\n```\n%s\n```\n", strings.Join(append([]string{"astrabox"}, path...), " "), strings.TrimSpace(out.String()))
		for _, sub := range subcommands(out.String()) {
			walk(append(append([]string{}, path...), sub))
		}
	}
	walk(nil)
	return b.Bytes()
}

// subcommands reads the names below "Available Commands:".
func subcommands(help string) (names []string) {
	_, list, ok := strings.Cut(help, "Available Commands:\n")
	if !ok {
		return nil
	}
	for line := range strings.Lines(list) {
		name := strings.Fields(line)
		if len(name) == 0 {
			return names
		}
		if name[0] != "help" && name[0] != "completion" {
			names = append(names, name[0])
		}
	}
	return names
}
