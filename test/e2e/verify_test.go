package e2e

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/astrabox/astrabox/provider/all" // installs the driver
	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform"
)

// verify runs `astrabox provider verify open_sandbox --json`.
func verify(t *testing.T, env []string, args ...string) conform.Report {
	t.Helper()
	r := run(t, env, append([]string{"provider", "verify", "open_sandbox", "--json"}, args...)...)
	var report conform.Report
	d := json.NewDecoder(strings.NewReader(r.out))
	d.DisallowUnknownFields()
	if err := d.Decode(&report); err != nil {
		t.Fatalf("%v: exit %d, %q %q", err, r.code, r.out, r.errOut)
	}
	if report.Provider != "open_sandbox" || (r.code == 0) != report.OK() {
		t.Errorf("exit %d with %+v", r.code, report.Summary)
	}
	var text strings.Builder
	if err := report.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if !report.OK() || report.Summary.Deviations > 0 {
		t.Error(text.String())
	}
	return report
}

// waited is how long, since the machine started, something waited for a core;
// zero where the kernel doesn't count it.
func waited(t *testing.T) time.Duration {
	b, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), "total=")
	total, _, _ := strings.Cut(rest, "\n")
	us, err := strconv.ParseInt(total, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(us) * time.Microsecond
}

// TestVerify: the bundled backend keeps every promise, and a minute is enough
// to see it, apart from the time that other programs took.
func TestVerify(t *testing.T) {
	need(t)
	junit := filepath.Join(t.TempDir(), "report.xml")
	start, before := time.Now(), waited(t)
	report := verify(t, nil, "--junit", junit)
	if took, busy := time.Since(start), waited(t)-before; took-busy > time.Minute {
		t.Errorf("it took %v, and something waited for a core for %v of it", took, busy)
	}
	if want := len(conform.Clauses()); len(report.Clauses) != want || report.Summary.Passed < want*9/10 {
		t.Errorf("of %d clauses: %+v", want, report.Summary)
	}
	b, err := os.ReadFile(junit)
	if err != nil {
		t.Fatal(err)
	}
	var suite struct {
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Cases    []struct{} `xml:"testcase"`
	}
	if err := xml.Unmarshal(b, &suite); err != nil || suite.Tests != len(report.Clauses) || len(suite.Cases) != suite.Tests || suite.Failures != 0 {
		t.Errorf("JUnit: %+v, %v", suite, err)
	}
}

// TestVerifyThroughTheProxy: the same promises where sandboxes are reached
// through the lifecycle service.
func TestVerifyThroughTheProxy(t *testing.T) {
	need(t)
	verify(t, []string{"ASTRABOX_SANDBOX_SERVER_PROXY=true"}, "--run", `^(create|connect|handle|commands|files|processes)\.`)
}

// TestVerifyMasked: the other direction of every flag that the provider has.
func TestVerifyMasked(t *testing.T) {
	need(t)
	d, ok := driver()
	if !ok {
		t.Fatal("open_sandbox isn't installed")
	}
	for _, rule := range sandbox.Rules() {
		var ids []string
		for _, c := range conform.Clauses() {
			if c.Capability == rule.Flag {
				ids = append(ids, regexp.QuoteMeta(c.ID))
			}
		}
		if !rule.Declared(d.Declares) || len(ids) == 0 {
			continue
		}
		t.Run(rule.Flag, func(t *testing.T) {
			report := verify(t, []string{"ASTRABOX_SANDBOX_DISABLE=" + rule.Flag}, "--run", "^("+strings.Join(ids, "|")+")$")
			if report.Summary.NotDeclared != len(ids) {
				t.Errorf("of %d clauses: %+v", len(ids), report.Summary)
			}
		})
	}
}

func driver() (sandbox.Driver, bool) {
	all, err := sandbox.Installed()
	if err != nil {
		return sandbox.Driver{}, false
	}
	for _, d := range all {
		if d.Name == "open_sandbox" {
			return d, true
		}
	}
	return sandbox.Driver{}, false
}

// TestVerifyFindsAService that breaks its promises, says which, and exits with 1.
func TestVerifyReportsFailures(t *testing.T) {
	need(t)
	nobody := []string{"ASTRABOX_SANDBOX_OPENAPI_BASE_URL=http://127.0.0.1:9/v1", "ASTRABOX_SANDBOX_OPENAPI_KEY=very-secret-key", "ASTRABOX_SANDBOX_OPENAPI_TIMEOUT=500ms"}
	r := run(t, nobody, "provider", "verify", "open_sandbox", "--run", "^unknown.probe$", "--deviation", "unknown.probe=it is far away")
	if r.code != 0 || !strings.Contains(r.out, "DEVIATION: unknown.probe") || !strings.Contains(r.out, "reason    it is far away") {
		t.Errorf("exit %d: %s", r.code, r.out)
	}
	// Where no sandbox can be made, the report says so once.
	r = run(t, nobody, "provider", "verify", "open_sandbox", "--deviation", "create.id=it is down")
	if r.code != 1 || strings.Count(r.out, "connection refused") != 1 || strings.Count(r.out, "FAILED") != 1 || strings.Contains(r.out, "files.names") {
		t.Errorf("exit %d", r.code)
	}
	for _, want := range []string{"FAILED: create.id", "expected  creating a sandbox to succeed", "not-run: no sandbox could be made, see create.id"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %q in %s", want, r.out)
		}
	}
	if strings.Contains(r.out+r.errOut, "very-secret-key") {
		t.Error("the key is in the report")
	}
	for name, tt := range map[string]struct {
		args []string
		says string
	}{
		"no name":                {[]string{"provider", "verify"}, "name the provider"},
		"an unknown provider":    {[]string{"provider", "verify", "open_sandbx"}, "open_sandbox"},
		"a bad pattern":          {[]string{"provider", "verify", "open_sandbox", "--run", "("}, "--run"},
		"a pattern of nothing":   {[]string{"provider", "verify", "open_sandbox", "--run", "^nothing.such$"}, "matches no clause"},
		"a report to nowhere":    {[]string{"provider", "verify", "open_sandbox", "--junit", "/nonexistent/report.xml"}, "--junit"},
		"no time":                {[]string{"provider", "verify", "open_sandbox", "--timeout", "0s"}, "--timeout must be above zero"},
		"a negative lease":       {[]string{"provider", "verify", "open_sandbox", "--short-ttl", "-1s"}, "--short-ttl"},
		"no image":               {[]string{"provider", "verify", "open_sandbox", "--image", " "}, "--image"},
		"no reason":              {[]string{"provider", "verify", "open_sandbox", "--deviation", "create.id"}, "ID=REASON"},
		"a deviation of nothing": {[]string{"provider", "verify", "open_sandbox", "--deviation", "create.idd=typo"}, "create.idd"},
	} {
		t.Run(name, func(t *testing.T) {
			if r := run(t, nobody, tt.args...); r.code != 2 || !strings.Contains(r.errOut, tt.says) {
				t.Errorf("exit %d %q", r.code, r.errOut)
			}
		})
	}
	if r := run(t, nil, "provider", "verify", "--list", "--run", "^create.id$"); r.code != 0 || !strings.Contains(r.out, "create.id") || strings.Contains(r.out, "create.env") {
		t.Errorf("the list: exit %d %q %q", r.code, r.out, r.errOut)
	}
}
