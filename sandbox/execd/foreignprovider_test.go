package execd_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/provider/opensandbox"
	lifecycle "github.com/astrabox/astrabox/provider/opensandbox/wire"
	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/internal/quirk"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
	"github.com/astrabox/astrabox/test/machine"
)

// A handle of the open_sandbox provider works on a sandbox whose image carries
// another execd, all faults included: from the service's endpoint to the file.
func TestProviderOverAForeignExecd(t *testing.T) {
	machine.NeedReadOnly(t) // so that /run is this test's alone
	must(t, unix.Mount("tmpfs", "/run", "tmpfs", 0, "size=64m"))
	t.Cleanup(func() {
		if err := unix.Unmount("/run", unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	b := foreign(t, quirk.Harmless...)
	reply := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /v1/sandboxes/a", reply(lifecycle.Sandbox{
		ID: "a", Status: lifecycle.Status{State: "Running"}, Entrypoint: []string{"tail"}, CreatedAt: time.Now(),
	}))
	mux.Handle("GET /v1/sandboxes/a/endpoints/44772", reply(lifecycle.Endpoint{
		Endpoint: b.s.URL().Host, Headers: map[string]string{wire.HeaderToken: quirk.Token},
	}))
	service := httptest.NewServer(mux)
	t.Cleanup(service.Close)
	vars := map[string]string{"ASTRABOX_SANDBOX_OPENAPI_BASE_URL": service.URL + "/v1", "ASTRABOX_SANDBOX_OPENAPI_KEY": "k"}
	p, err := opensandbox.New(sandbox.Host{InstallationID: "inst_1", Getenv: func(k string) string { return vars[k] }})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	h, err := p.Connect(ctx(t), "a")
	must(t, err)

	f, dir := h.Files(), b.tmp+"/work"
	must(t, f.MakeDir(ctx(t), dir, sandbox.DirOptions{}))
	tour(t, f, dir, few...)
	tour(t, f.Beneath(b.tmp), dir, few...)
	if got := names(t, "/run/astrabox-execd"); slices.ContainsFunc(got, func(n string) bool { return strings.HasPrefix(n, "files-") }) {
		t.Errorf("left: %v", got)
	}
	// What a command writes, files read, and the other way round.
	must(t, write(t, f, dir+"/in", "x\xff", sandbox.WriteOptions{}))
	if res, err := h.Commands().Run(ctx(t), sandbox.Command{Line: "cat in >out && printf '\\0' >>out", Dir: dir}); err != nil || res.ExitCode != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	if got := read(t, f, dir+"/out", 0, -1); got != "x\xff\x00" {
		t.Errorf("read %q", got)
	}
	must(t, f.RemoveAll(ctx(t), dir))
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Error(err)
	}
}
