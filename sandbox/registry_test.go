package sandbox

import (
	"context"
	"strings"
	"sync"
	"testing"
)

func someDriver(name string) Driver {
	return Driver{Name: name, SeamVersion: SeamVersion, New: func(context.Context, Host) (Provider, error) { return nil, nil }}
}

func TestRegistry(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(*Driver)
		wrong []string // empty: accepted
	}{
		{"good", func(*Driver) {}, nil},
		{"another minor version", func(d *Driver) { d.SeamVersion = "1.99" }, nil},
		{"another major version", func(d *Driver) { d.SeamVersion = "2.0" }, []string{`"2.0"`, SeamVersion}},
		{"no version", func(d *Driver) { d.SeamVersion = "" }, []string{`""`, SeamVersion}},
		{"empty name", func(d *Driver) { d.Name = "" }, []string{"name"}},
		{"capitals", func(d *Driver) { d.Name = "E2B" }, []string{"name"}},
		{"a digit first", func(d *Driver) { d.Name = "2b" }, []string{"name"}},
		{"a hyphen", func(d *Driver) { d.Name = "open-sandbox" }, []string{"name"}},
		{"space around", func(d *Driver) { d.Name = " acme" }, []string{"name"}},
		{"taken", func(d *Driver) { d.Name = "taken" }, []string{"taken by the driver of package first/one"}},
		{"no New", func(d *Driver) { d.New = nil }, []string{"New is nil"}},
		{"a setting without a name", func(d *Driver) { d.Settings = []Setting{{}} }, []string{"no name"}},
		{"a setting twice", func(d *Driver) { d.Settings = []Setting{{Name: "A"}, {Name: "A"}} }, []string{"A is there twice"}},
		{"a setting that can't be one", func(d *Driver) { d.Settings = []Setting{{Name: "A=B"}} }, []string{`"A=B"`}},
		{"recovery alone", func(d *Driver) { d.Declares.IsolatedSessionRecovery = true }, []string{"IsolatedSessionRecovery without IsolatedSessions"}},
		{"no levels", func(d *Driver) { d.Declares.PermissionLevels = []PermissionLevel{} }, []string{"empty"}},
		{"privileged", func(d *Driver) { d.Declares.PermissionLevels = []PermissionLevel{"privileged"} }, []string{"privileged"}},
		{"everything at once", func(d *Driver) {
			*d = Driver{Name: "taken", Settings: []Setting{{}}, Declares: Capabilities{PermissionLevels: []PermissionLevel{"x", "x"}}}
		}, []string{"taken by", "seam version", "New is nil", "no name", `"x"`, "twice"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var r registry
			first := someDriver("taken")
			first.origin = Origin{Package: "first/one"}
			r.add(first)
			d := someDriver("acme")
			tt.spoil(&d)
			d.origin = Origin{Package: "example.com/acme/provider", Module: "example.com/acme", Version: "v1.2.3"}
			r.add(d)
			drivers, err := r.list()
			if len(tt.wrong) == 0 {
				if err != nil || len(drivers) != 2 || drivers[0].Name != "acme" || drivers[0].Origin() != d.origin {
					t.Errorf("%v %v", drivers, err)
				}
				return
			}
			if len(drivers) != 1 || CodeOf(err) != CodeInvalid {
				t.Fatalf("%v %v", drivers, err)
			}
			for _, w := range append(tt.wrong, "example.com/acme", "v1.2.3") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v doesn't say %q", err, w)
				}
			}
		})
	}
}

// All refusals are there, however many, from whatever goroutine.
func TestRegistryKeepsEveryRefusal(t *testing.T) {
	var r registry
	var wg sync.WaitGroup
	for _, name := range []string{"A", "B", "c", "d"} {
		wg.Go(func() { r.add(someDriver(name)) })
	}
	wg.Wait()
	drivers, err := r.list()
	if len(drivers) != 2 || err == nil || !strings.Contains(err.Error(), `"A"`) || !strings.Contains(err.Error(), `"B"`) {
		t.Errorf("%v %v", drivers, err)
	}
}

func TestOrigin(t *testing.T) {
	if got := callerPackage(1); got != "github.com/astrabox/astrabox/sandbox" {
		t.Errorf("the caller's package is %q", got)
	}
	for _, tt := range []struct {
		o    Origin
		want string
	}{
		{Origin{Package: "p"}, "package p"},
		{Origin{Package: "m/p", Module: "m"}, "module m"},
		{Origin{Package: "m/p", Module: "m", Version: "v1.0.0"}, "module m v1.0.0"},
	} {
		if tt.o.String() != tt.want {
			t.Errorf("%+v is %q", tt.o, tt.o)
		}
	}
}

// Every code has a status of its class, and a 501 is ErrUnsupported.
func TestCodeDefaults(t *testing.T) {
	for code, want := range map[Code]int{
		CodeInvalid: 400, CodeNameInvalid: 400, CodePortReserved: 400, CodeDiagnosticScope: 400,
		CodeGone: 404, CodeNotFound: 404, CodeBackendUnknown: 404,
		CodeNotRunning: 409, CodeAssignmentConflict: 409, CodeAssignmentAmbiguous: 409, CodeCreateInterrupted: 409,
		CodeBackendDisabled: 409, CodeConfigUnsupported: 409, CodeLevelUnsupported: 409, CodeIsolatedSessionNotFound: 409,
		CodeUnsupported: 501, CodeIsolationUnsupported: 501, CodeProcessUnsupported: 501, CodePauseUnsupported: 501, CodeListingUnsupported: 501,
		CodeCorrelatedUnsupported: 501, CodeSignedUnsupported: 501, CodeNetworkUnsupported: 501, CodeInjectionUnsupported: 501,
		CodePoolUnsupported: 501, CodeDiagnosticsUnsupported: 501,
		CodeUnavailable: 502, CodeCleanupUnconfirmed: 502, CodeLinkNeedsHeaders: 502, CodeCapacity: 503, CodePoolUnavailable: 503,
	} {
		e := Errorf(code, "x")
		if e.Status != want || e.Is(ErrUnsupported) != (want == 501) {
			t.Errorf("%s has status %d, want %d", code, e.Status, want)
		}
		if want < 500 || want == 501 {
			if e.Retryable {
				t.Errorf("%s says that the identical request may succeed later", code)
			}
		}
	}
}
