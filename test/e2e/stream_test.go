package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/model"
)

// piece reads events from one connection of a stream, at most n, and cuts the
// connection; done is true when the turn's end was among them.
func (s *server) piece(t *testing.T, id string, header, query int64, n int) (events []model.Event, done bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(timeout(t), patience)
	defer cancel()
	target := s.url() + conversations + "/" + id + "/events/stream"
	if query >= 0 {
		target += "?after=" + strconv.FormatInt(query, 10)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	if header >= 0 {
		req.Header.Set("Last-Event-ID", strconv.FormatInt(header, 10))
	}
	resp, err := (&http.Transport{}).RoundTrip(req) // a connection of its own, which is cut
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("%s %s", resp.Status, resp.Header.Get("Content-Type"))
	}
	number := ""
	for lines := bufio.NewScanner(resp.Body); len(events) < n && !done && lines.Scan(); {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "id":
			number = value
		case "data":
			var e model.Event
			if err := json.Unmarshal([]byte(value), &e); err != nil {
				t.Fatalf("%v in %q", err, value)
			}
			if strconv.FormatInt(e.Seq, 10) != number {
				t.Fatalf("event %d has the id %q", e.Seq, number)
			}
			events = append(events, e)
			done = e.Type == model.EventTurnEnded
		}
	}
	return events, done
}

// TestStreamResumes: a client that loses its connection every few events, and
// names the last one that it has, gets each event once and in order.
func TestStreamResumes(t *testing.T) {
	s := newServer(t, options{})
	id := s.conversation()
	s.send(id, counting(40, 20*time.Millisecond))
	var got []model.Event
	for n, done := 1, false; !done; n = n%7 + 1 {
		var events []model.Event
		events, done = s.piece(t, id, int64(len(got)), 0, n) // the header wins over the address's own number
		got = append(got, events...)
		if n == 5 {
			// A stream that is open when the server dies breaks off; the next one goes on.
			s.kill()
			s.start()
		}
	}
	want := s.journal(id)
	if diff := cmp.Diff(want[:len(got)], got); diff != "" {
		t.Errorf("pieced together (-journal +streamed):\n%s", diff)
	}
	if last := got[len(got)-1]; last.Type != model.EventTurnEnded {
		t.Errorf("the last event is %s", last.Type)
	}
	var lines string
	for _, e := range got {
		lines += output(s, e)
	}
	if lines != counted(40) {
		t.Errorf("expected each line once, saw:\n%s", lines)
	}
	// The number in the address works by itself, and several read at once.
	a, _ := s.piece(t, id, -1, 3, 4)
	b, _ := s.piece(t, id, -1, -1, 7)
	if diff := cmp.Diff(want[3:7], a); diff != "" {
		t.Errorf("after 3:\n%s", diff)
	}
	if diff := cmp.Diff(want[:7], b); diff != "" {
		t.Errorf("from the start:\n%s", diff)
	}
}
