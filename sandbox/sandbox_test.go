package sandbox_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

func TestValidID(t *testing.T) {
	for id, want := range map[string]bool{
		"a": true, "A0._-z": true, strings.Repeat("x", 253): true,
		"": false, "-a": false, ".a": false, "a/b": false, "a..b": false, "..": false, "a b": false, "a\n": false, "é": false,
		strings.Repeat("x", 254): false,
	} {
		if got := sandbox.ValidID(id); got != want {
			t.Errorf("ValidID(%q) = %v, want %v", id, got, want)
		}
	}
}

func FuzzValidID(f *testing.F) {
	f.Add("abc")
	f.Add("a..b")
	f.Fuzz(func(t *testing.T, id string) {
		if sandbox.ValidID(id) && (strings.ContainsAny(id, "/\\ \n\x00%?#") || strings.Contains(id, "..")) {
			t.Errorf("%q passes", id)
		}
	})
}

func TestErrors(t *testing.T) {
	cause := errors.New("connection refused")
	err := fmt.Errorf("start: %w", sandbox.Errorf(sandbox.CodeGone, "it went away: %w", cause))
	for name, ok := range map[string]bool{
		"gone":             errors.Is(err, sandbox.ErrGone),
		"cause":            errors.Is(err, cause),
		"code":             sandbox.CodeOf(err) == sandbox.CodeGone,
		"not not-found":    !errors.Is(err, sandbox.ErrNotFound),
		"501":              errors.Is(sandbox.Errorf(sandbox.CodePauseUnsupported, "no"), sandbox.ErrUnsupported),
		"fs.ErrNotExist":   errors.Is(&sandbox.PathError{Op: "stat", Path: "/x", Err: sandbox.ErrPathNotFound}, fs.ErrNotExist),
		"changed rejected": errors.Is(sandbox.ErrChanged, sandbox.ErrPathRejected),
	} {
		if !ok {
			t.Errorf("%s doesn't hold", name)
		}
	}
}

func goodSpec() sandbox.CreateSpec {
	return sandbox.CreateSpec{
		InstallationID: "i", OwnerID: "o", AssignmentID: "a", Image: "astrabox:host",
		ResourceLimits: map[string]string{"cpu": "1"}, ResourceRequests: map[string]string{"cpu": "1"},
	}
}

func TestCreateSpecValidate(t *testing.T) {
	good := goodSpec()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		field string
		spoil func(*sandbox.CreateSpec)
	}{
		{"InstallationID", func(s *sandbox.CreateSpec) { s.InstallationID = "" }},
		{"OwnerID", func(s *sandbox.CreateSpec) { s.OwnerID = "" }},
		{"AssignmentID", func(s *sandbox.CreateSpec) { s.AssignmentID = "" }},
		{"AssignmentID", func(s *sandbox.CreateSpec) { s.AssignmentID = s.OwnerID }},
		{"Image", func(s *sandbox.CreateSpec) { s.Image = "  " }},
		{"Entrypoint", func(s *sandbox.CreateSpec) { s.Entrypoint = []string{} }},
		{"Dir", func(s *sandbox.CreateSpec) { s.Dir = "workspace" }},
		{"ResourceLimits", func(s *sandbox.CreateSpec) { s.ResourceLimits = nil }},
		{"ResourceRequests", func(s *sandbox.CreateSpec) { s.ResourceRequests = map[string]string{} }},
		{"TTL", func(s *sandbox.CreateSpec) { s.TTL = -1 }},
		{"Entrypoint", func(s *sandbox.CreateSpec) { s.Entrypoint = []string{""} }},
		{"Entrypoint", func(s *sandbox.CreateSpec) { s.Entrypoint = []string{"sh", "a\x00b"} }},
		{"OwnerID", func(s *sandbox.CreateSpec) { s.OwnerID = "a\nb" }},
		{"Dir", func(s *sandbox.CreateSpec) { s.Dir = "/a/../b" }},
		{"Dir", func(s *sandbox.CreateSpec) { s.Dir = "/a\x00" }},
		{"ResourceLimits", func(s *sandbox.CreateSpec) { s.ResourceLimits = map[string]string{"cpu": " "} }},
		{"ResourceRequests", func(s *sandbox.CreateSpec) { s.ResourceRequests = map[string]string{"": "1"} }},
		{"ResourceLimits", func(s *sandbox.CreateSpec) { s.ResourceLimits = map[string]string{"cpu": "0.00"} }},
		{"ResourceLimits", func(s *sandbox.CreateSpec) { s.ResourceLimits = map[string]string{"cpu": "-1"} }},
		{"ResourceLimits", func(s *sandbox.CreateSpec) { s.ResourceLimits = map[string]string{"memory": "4 Gi"} }},
		{"ResourceRequests", func(s *sandbox.CreateSpec) { s.ResourceRequests = map[string]string{"memory": "plenty"} }},
		{"Env", func(s *sandbox.CreateSpec) { s.Env = map[string]string{"A": "b\x00"} }},
		{"Env", func(s *sandbox.CreateSpec) { s.Env = map[string]string{"": "c"} }},
		{"Metadata", func(s *sandbox.CreateSpec) { s.Metadata = map[string]string{"a": ""} }},
		{"Metadata", func(s *sandbox.CreateSpec) { s.Metadata = map[string]string{sandbox.KeyNetworkWiring: "x"} }},
		{"Metadata", func(s *sandbox.CreateSpec) { s.Metadata = map[string]string{sandbox.KeyManagedBy: "x"} }},
		{"Metadata", func(s *sandbox.CreateSpec) { s.Metadata = map[string]string{sandbox.KeyInstallation: "x"} }},
		{"Metadata", func(s *sandbox.CreateSpec) { s.Metadata = map[string]string{sandbox.KeyAssignmentID: "x"} }},
		{"WorkspaceMounts", func(s *sandbox.CreateSpec) { s.WorkspaceMounts = []sandbox.Mount{{Source: "v", Path: "w"}} }},
		{"WorkspaceMounts", func(s *sandbox.CreateSpec) { s.WorkspaceMounts = []sandbox.Mount{{Source: "v", Path: "//"}} }},
		{"WorkspaceMounts", func(s *sandbox.CreateSpec) { s.WorkspaceMounts = []sandbox.Mount{{Path: "/w"}} }},
		{"WorkspaceMounts", func(s *sandbox.CreateSpec) {
			s.WorkspaceMounts = []sandbox.Mount{{Source: "v", Path: "/w"}, {Source: "x", Path: "/w"}}
		}},
		{"PublishPorts", func(s *sandbox.CreateSpec) { s.PublishPorts = []int{0} }},
		{"PublishPorts", func(s *sandbox.CreateSpec) { s.PublishPorts = []int{80, 80} }},
		{"PublishPorts", func(s *sandbox.CreateSpec) { s.PublishPorts = []int{sandbox.ExecdPort} }},
		{"WaitForPort", func(s *sandbox.CreateSpec) { s.WaitForPort = 70000 }},
		{"WaitForPort", func(s *sandbox.CreateSpec) { s.WaitForPort = sandbox.ExecdPort }},
		{"NetworkPolicy", func(s *sandbox.CreateSpec) { s.NetworkPolicy = &sandbox.NetworkPolicy{Mode: "open"} }},
		{"PermissionLevel", func(s *sandbox.CreateSpec) { s.PermissionLevel = "root" }},
		{"Vault", func(s *sandbox.CreateSpec) { s.Vault.Model = []sandbox.ModelCredential{{}} }},
		{"DeathCallbackURL", func(s *sandbox.CreateSpec) { s.DeathCallbackURL = "/hunter2" }},
		{"DeathCallbackURL", func(s *sandbox.CreateSpec) { s.DeathCallbackURL = "ftp://h/hunter2" }},
		{"Env", func(s *sandbox.CreateSpec) { s.Env = map[string]string{"A=B": "c"} }},
		{"Metadata", func(s *sandbox.CreateSpec) { s.Metadata = map[string]string{sandbox.KeySessionID: "x"} }},
		{"Image", func(s *sandbox.CreateSpec) { s.Image = "a\xff" }},
		{"Entrypoint", func(s *sandbox.CreateSpec) { s.Entrypoint = []string{"sh", "\xff"} }},
		{"Dir", func(s *sandbox.CreateSpec) { s.Dir = "/\xff" }},
		{"Env", func(s *sandbox.CreateSpec) { s.Env = map[string]string{"A": "\xff"} }},
		{"Env", func(s *sandbox.CreateSpec) { s.Env = map[string]string{"\xff": "a"} }},
		{"Metadata", func(s *sandbox.CreateSpec) { s.Metadata = map[string]string{"a": "\xff"} }},
		{"WorkspaceMounts", func(s *sandbox.CreateSpec) { s.WorkspaceMounts = []sandbox.Mount{{Source: "\xff", Path: "/w"}} }},
	}
	for _, tt := range tests {
		s := good
		tt.spoil(&s)
		err := s.Validate()
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), tt.field) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("spoilt %s: %v", tt.field, err)
		}
	}
	whole := goodSpec()
	whole.Entrypoint, whole.Dir, whole.TTL = []string{"sleep", ""}, "/work space/$x", time.Hour
	whole.Env, whole.Metadata = map[string]string{"A": "", "B": "x=y\nz"}, map[string]string{"astrabox.workspace-id": "w"}
	whole.WorkspaceMounts = []sandbox.Mount{{Source: "v", Path: "/w"}, {Source: "v", Path: "/x", ReadOnly: true}}
	whole.ResourceLimits = map[string]string{"cpu": "0.5", "memory": "4Gi", "pids": "4096", "disk": "10G", "example.com/gpu": "1", "x": "1e3", "y": "500m", "z": ".5"}
	whole.PublishPorts, whole.WaitForPort, whole.RequireCommandChannel = []int{80, 443}, 80, true
	whole.NetworkPolicy, whole.PermissionLevel = &sandbox.NetworkPolicy{AllowedHosts: []string{"*.example.com"}}, sandbox.PermissionAdvanced
	whole.CredentialProxy, whole.Vault, whole.DeathCallbackURL = true, goodPlan(), "https://astrabox.example.com/x?y"
	if err := whole.Validate(); err != nil {
		t.Errorf("a spec with everything: %v", err)
	}
}

func TestClaim(t *testing.T) {
	spec := goodSpec()
	spec.Metadata = map[string]string{"astrabox.workspace-id": "w"}
	mine := spec.OwnershipMetadata()
	if len(spec.Metadata) != 1 || mine["astrabox.workspace-id"] != "w" || len(mine) != 5 {
		t.Errorf("%v", mine)
	}
	with := func(k, v string) map[string]string {
		m := spec.OwnershipMetadata()
		m[k] = v
		return m
	}
	for _, tt := range []struct {
		name                string
		metadata            map[string]string
		installation, owner string
		want                sandbox.Claim
	}{
		{"mine", mine, "i", "o", sandbox.ClaimMine},
		{"anybody's of mine", mine, "i", "", sandbox.ClaimMine},
		{"another owner", mine, "i", "other", sandbox.ClaimForeign},
		{"another installation", mine, "j", "o", sandbox.ClaimForeign},
		{"another manager", with(sandbox.KeyManagedBy, "someone"), "i", "o", sandbox.ClaimForeign},
		{"no manager", with(sandbox.KeyManagedBy, ""), "i", "o", sandbox.ClaimForeign},
		{"no metadata", nil, "i", "o", sandbox.ClaimUnknown},
		{"other metadata", map[string]string{"x": "y"}, "i", "o", sandbox.ClaimUnknown},
		{"no installation", with(sandbox.KeyInstallation, ""), "i", "o", sandbox.ClaimUnknown},
		{"no installation and another manager", map[string]string{sandbox.KeyManagedBy: "someone"}, "i", "", sandbox.ClaimUnknown},
		{"asked for no installation", mine, "", "o", sandbox.ClaimUnknown},
		{"no owner", with(sandbox.KeySessionID, ""), "i", "", sandbox.ClaimUnclaimed},
		{"no owner, one asked for", with(sandbox.KeySessionID, ""), "i", "o", sandbox.ClaimUnclaimed},
	} {
		got := sandbox.ClaimOf(tt.metadata, tt.installation, tt.owner)
		if got != tt.want || got.MayDestroy() != (tt.want == sandbox.ClaimMine) || got.String() == "" {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	if sandbox.Claim(9).MayDestroy() {
		t.Error("a claim that there isn't permits to destroy")
	}
}

func TestObservationNormal(t *testing.T) {
	for _, tt := range []struct {
		in     sandbox.Observation
		status sandbox.ObservedStatus
		state  string
		lost   bool
	}{
		{sandbox.Observation{}, sandbox.Unknown, "", false},
		{sandbox.Observation{Status: sandbox.ObservedOK, State: " Running"}, sandbox.ObservedOK, "running", false},
		{sandbox.Observation{Status: sandbox.ObservedOK, State: "PAUSED"}, sandbox.ObservedOK, "paused", false},
		{sandbox.Observation{Status: sandbox.ObservedOK, State: "FAILED"}, sandbox.ObservedOK, "failed", true},
		{sandbox.Observation{Status: sandbox.ObservedOK, State: "Error"}, sandbox.ObservedOK, "error", true},
		{sandbox.Observation{Status: sandbox.ObservedOK, State: "Terminated"}, sandbox.ObservedOK, "terminated", true},
		{sandbox.Observation{Status: sandbox.ObservedOK}, sandbox.ObservedError, "", false},
		{sandbox.Observation{Status: sandbox.ObservedGone, State: "x"}, sandbox.ObservedGone, "x", false},
		{sandbox.Observation{Status: sandbox.ObservedError, State: "failed"}, sandbox.ObservedError, "failed", false},
		{sandbox.Observation{Status: 7, State: "running"}, sandbox.ObservedError, "", false},
	} {
		if got := tt.in.Normal(); got.Status != tt.status || got.State != tt.state || got.Lost() != tt.lost {
			t.Errorf("%+v became %+v, lost %v", tt.in, got, got.Lost())
		}
	}
}

func TestBase(t *testing.T) {
	var b sandbox.Base
	if _, err := b.Probe(t.Context(), "a"); !errors.Is(err, sandbox.ErrProbeUnsupported) {
		t.Errorf("Probe: %v", err)
	}
	if _, err := b.Renew(t.Context(), "a", 1); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("Renew: %v", err)
	}
	if _, err := b.ExpiresAt(t.Context(), "a"); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("ExpiresAt: %v", err)
	}
	if id, ok := b.EndpointNamesSandbox("https://h/sandboxes/a/"); ok || id != "" {
		t.Error("it names a sandbox")
	}
	if r, ok := b.WorkspaceRoute(); ok || r != nil {
		t.Error("it has a route")
	}
	// None of the optional operations, or Bind would see them everywhere.
	for _, r := range sandbox.Rules() {
		if r.Field != "" && r.Implemented(&bare{}) {
			t.Errorf("Base has the operations of %s", r.Flag)
		}
	}
	for _, o := range sandbox.Optionals() {
		if o.Implemented(&bare{}) {
			t.Errorf("Base has %s", o.Needs)
		}
	}
}

func TestUnsupportedProcesses(t *testing.T) {
	p := sandbox.UnsupportedProcesses("plain")
	_, start := p.Start(t.Context(), sandbox.ProcessSpec{})
	_, status := p.Status(t.Context(), "x")
	_, attach := p.Attach(t.Context(), "x", sandbox.AttachOptions{})
	for _, err := range []error{start, status, attach, p.Delete(t.Context(), "x")} {
		if sandbox.CodeOf(err) != sandbox.CodeProcessUnsupported || !strings.Contains(err.Error(), "plain") {
			t.Errorf("%v", err)
		}
	}
}

func TestModeRefusesOtherBits(t *testing.T) {
	for m, ok := range map[fs.FileMode]bool{
		0: true, 0o644: true, 0o755 | fs.ModeSetuid: true, 0o777 | fs.ModeSticky: true,
		0o4755: false, fs.ModeDir | 0o755: false, fs.ModeSymlink: false,
	} {
		if err := (sandbox.Attr{Mode: &m}).CheckMode(); (err == nil) != ok {
			t.Errorf("mode %#o: %v", uint32(m), err)
		}
	}
}
