package httpapi_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/conversation"
	"github.com/astrabox/astrabox/internal/httpapi"
	"github.com/astrabox/astrabox/internal/httpapi/httpapitest"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
)

// follow reads an event stream until the server ends it or got, which is called
// for each message, is false.
func follow(t *testing.T, r *rig, ctx context.Context, path string, headers map[string]string, got func(id, event, data string) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", r.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if ct := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || !strings.HasPrefix(ct, "text/event-stream") {
		t.Fatalf("%d %s", resp.StatusCode, ct)
	}
	var id, event, data string
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			id = value
		case "event":
			event = value
		case "data":
			data = value
		case "":
			if data != "" && !got(id, event, data) {
				return
			}
			event, data = "", ""
		}
	}
	if err := lines.Err(); err != nil {
		t.Errorf("the stream didn't end in order: %v", err)
	}
}

func TestStreamResumesWithoutGapOrDouble(t *testing.T) {
	r := newRig(t)
	id := r.conversation()
	const n = 500
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range n {
			r.svc.Emit(id, "text.delta", "turn_1", map[string]any{"text": fmt.Sprint(i)})
		}
	}()
	var got []int64
	last := ""
	for len(got) < n+1 {
		headers := map[string]string{}
		if last != "" {
			headers["Last-Event-ID"] = last
		}
		ctx, cancel := context.WithCancel(context.Background())
		left := 37 // then the connection drops
		// after= stays in the address, as a browser's EventSource keeps it.
		follow(t, r, ctx, "/api/v1/conversations/"+id+"/events/stream?after=0", headers, func(eventID, _, data string) bool {
			e := decode[model.Event](t, data)
			if fmt.Sprint(e.Seq) != eventID {
				t.Errorf("id %s of event %d", eventID, e.Seq)
			}
			got = append(got, e.Seq)
			last = eventID
			left--
			return left > 0 && len(got) < n+1
		})
		cancel()
	}
	<-done
	for i, seq := range got {
		if seq != int64(i+1) {
			t.Fatalf("event %d at place %d", seq, i)
		}
	}
}

func TestStreamIsLive(t *testing.T) {
	r := newRig(t)
	id := r.conversation()
	r.svc.OnSend = turnEnded
	var types []string
	follow(t, r, context.Background(), "/api/v1/conversations/"+id+"/events/stream?after=0", nil, func(_, _, data string) bool {
		e := decode[model.Event](t, data)
		types = append(types, e.Type)
		if e.Type == model.EventCreated {
			r.do("POST", "/api/v1/conversations/"+id+"/messages", `{"client_message_id":"m","text":"<b>&amp;\n"}`)
		}
		return e.Type != model.EventTurnEnded
	})
	if diff := cmp.Diff([]string{model.EventCreated, model.EventAccepted, model.EventTurnEnded}, types); diff != "" {
		t.Error(diff)
	}
}

func TestStreamEnds(t *testing.T) {
	for name, end := range map[string]func(r *rig, id string){
		"with the conversation": func(r *rig, id string) { r.do("DELETE", "/api/v1/conversations/"+id, "") },
		"with the server":       func(r *rig, _ string) { r.api.Drain() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			id := r.conversation()
			n := 0
			follow(t, r, context.Background(), "/api/v1/conversations/"+id+"/events/stream", nil, func(_, _, _ string) bool {
				if n++; n == 1 {
					end(r, id)
				}
				return true
			})
			if n == 0 {
				t.Error("it ended before its first event")
			}
		})
	}
}

func TestStreamTellsFailures(t *testing.T) {
	r := newRig(t)
	id := r.conversation()
	r.svc.Fail = func(method string) error {
		if method == "Stream" {
			return errLost
		}
		return nil
	}
	var got []string
	follow(t, r, context.Background(), "/api/v1/conversations/"+id+"/events/stream", nil, func(_, event, data string) bool {
		p := decode[wire.Problem](t, data)
		got = append(got, event, p.Code)
		if strings.Contains(data, "hunter2") {
			t.Error(data)
		}
		return true
	})
	if diff := cmp.Diff([]string{"error", "INTERNAL_ERROR"}, got); diff != "" {
		t.Error(diff)
	}
}

// The clock of this bubble is not real, so an idle hour takes no time.
func TestHeartbeat(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		svc := httpapitest.New(dir)
		api, err := httpapi.New(httpapi.Config{Service: svc})
		if err != nil {
			t.Fatal(err)
		}
		c, err := svc.CreateConversation(t.Context(), conversation.CreateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour+time.Second)
		defer cancel()
		req := httptest.NewRequest("GET", "http://localhost/api/v1/conversations/"+c.ID+"/events/stream", nil).WithContext(ctx)
		rec := httptest.NewRecorder()
		api.ServeHTTP(rec, req)
		if n := strings.Count(rec.Body.String(), ": heartbeat\n\n"); n != 240 {
			t.Errorf("%d heartbeats in an hour", n)
		}
		if n := strings.Count(rec.Body.String(), "data: "); n != 1 {
			t.Errorf("%d events", n)
		}
	})
}
