package sandboxtest_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform"
	"github.com/astrabox/astrabox/sandbox/sandboxtest"
	"github.com/astrabox/astrabox/test/machine"
)

// The whole test of a provider, which here is closet (closet_test.go).
func TestCloset(t *testing.T) {
	host := closetHost(t)
	p, err := driver.New(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.(*closet).Close() })
	bound, err := sandbox.Bind(driver, p)
	if err != nil {
		t.Fatal(err)
	}
	sandboxtest.Provider(t, conform.Subject{Driver: driver, Provider: p, Host: host}, conform.Options{})
	sandboxtest.Live(t, &conform.Live{
		Provider: bound,
		Spec: func() sandbox.CreateSpec {
			return sandbox.CreateSpec{
				Image:            "host",
				ResourceLimits:   map[string]string{"memory": "8Gi"},
				ResourceRequests: map[string]string{"memory": "64Mi"},
			}
		},
		Account:  "daemon", // of every Debian, with a group of its name
		ShortTTL: time.Second,
	}, conform.Options{})
}

// closetHost is what AstraBox gives a provider.
func closetHost(t *testing.T) sandbox.Host {
	machine.NeedRoot(t)
	execd := os.Getenv("ASTRABOX_EXECD_PATH")
	if execd == "" {
		execd = "../../bin/execd"
	}
	execd, err := filepath.Abs(execd)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(execd); err != nil {
		machine.Missing(t, "execd isn't built: %v", err)
	}
	settings := map[string]string{settingDir: t.TempDir()}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	return sandbox.Host{InstallationID: conform.Installation, ExecdPath: execd, Log: log, Getenv: func(name string) string { return settings[name] }}
}

// An execd that refuses to start is an error with its reason, and no sandbox.
func TestClosetTellsWhyItDoesntStart(t *testing.T) {
	p, err := driver.New(t.Context(), closetHost(t))
	if err != nil {
		t.Fatal(err)
	}
	defer p.(*closet).Close()
	_, err = p.Create(t.Context(), sandbox.CreateSpec{
		InstallationID: conform.Installation, OwnerID: "a", AssignmentID: "b", Image: "host", TTL: time.Minute,
		ResourceLimits: map[string]string{"memory": "8Gi"}, ResourceRequests: map[string]string{"memory": "64Mi"},
		Env: map[string]string{"EXECD_API_GRACE_SHUTDOWN": "-1s"},
	})
	if sandbox.CodeOf(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "execd failed: ") {
		t.Errorf("got %v", err)
	}
}
