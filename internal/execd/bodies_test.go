package execd

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// A body that asks for nothing that can be done is refused with a code and a
// sentence, whatever it consists of. One that can be done isn't sent: it would
// be, by root.
func FuzzBodies(f *testing.F) {
	reaper := child.NewReaper(false)
	f.Cleanup(reaper.Close)
	s, err := New(Config{Version: "test", Accounts: account.System, Reaper: reaper, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	handler := s.routes()

	command := func(b []byte) bool {
		var req wire.CommandRequest
		return json.NewDecoder(bytes.NewReader(b)).Decode(&req) == nil && invalidCommand(req) == ""
	}
	session := func(b []byte) bool {
		var req struct {
			Cwd string `json:"cwd"`
		}
		return len(bytes.TrimSpace(b)) == 0 || json.NewDecoder(bytes.NewReader(b)).Decode(&req) == nil
	}
	routes := []struct {
		path string
		does func(body []byte) bool
	}{
		{"/command", command},
		{"/command/operations", func([]byte) bool { return false }}, // no id fits this daemon
		{"/pty/operations", func([]byte) bool { return false }},
		{"/pty", func(b []byte) bool {
			var req wire.ProcessRequest
			if json.NewDecoder(bytes.NewReader(b)).Decode(&req) != nil {
				return false
			}
			_, problem := specOf(req)
			return req.Key == "" || problem == ""
		}},
		{"/session", session},
		{"/session/none/run", func([]byte) bool { return false }},
		{"/code", func(b []byte) bool {
			var req struct {
				Context struct{ ID, Language string }
				Code    string
			}
			return json.NewDecoder(bytes.NewReader(b)).Decode(&req) == nil && req.Code != ""
		}},
	}
	for i := range routes {
		for _, body := range []string{"", "{", "null", "[]", `{"command":1}`, `{"command":"x","argv":["y"]}`, `{"argv":[]}`,
			`{"command":"x","timeout":-1}`, `{"command":"x","timeout":9223372036854775807}`, `{"command":"x","gid":0}`,
			`{"key":"k","command":"x","buffer":1}`, `{"key":"k","command":"x","full":"?"}`,
			`{"command":"x","operation_id":"0.0.0"}`, `{"command":"x","nested":{"a":[[[[]]]]}}`} {
			f.Add(uint8(i), []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, route uint8, body []byte) {
		to := routes[int(route)%len(routes)]
		if to.does(body) {
			return
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, to.path, bytes.NewReader(body)))
		var e wire.Error
		switch err := json.Unmarshal(w.Body.Bytes(), &e); {
		case w.Code < 400 || w.Code >= 500:
			t.Errorf("%s %q: status %d %s", to.path, body, w.Code, w.Body)
		case err != nil || e.Code == "" || e.Message == "":
			t.Errorf("%s %q: the refusal says nothing: %s", to.path, body, w.Body)
		}
	})
}
