// sseload: SSE load generator and checker. One thread, epoll, no dependencies. See --help.
// tests/bench/load.py compiles and runs it; without a C compiler crowd.py takes its place.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
typedef int64_t i64;
enum { ST_IDLE, ST_CONNECTING, ST_HEADERS, ST_BODY, ST_DONE };
enum { CH_NONE, CH_SIZE, CH_DATA, CH_CRLF, CH_TRAILER };
typedef struct {
  int fd, st, ch;
  u64 chrem;
  int chdig;
  char *left;
  uint32_t nleft, capleft;
  i64 lastseq;
  int haveseq;     // sequence check
  char lastid[48]; // last SSE id, sent as Last-Event-ID on reconnect
  i64 curid;
  int havecurid, hasdata;
  i64 dseq, dts;
  int havedseq, havedts;
  u64 nev, nev_conn, t_req;
  i64 req_ns;
  int got_first, idx, reconnects;
} conn;

static conn *C;
static int ep, N = 1, npaths, fresh, connected, established, doneconns;
static struct sockaddr_in addr;
static char host[256] = "127.0.0.1";
static int port = 80;
static char **paths, *method = "GET", *body = "";
static char hdrs[8192];
static int seqdata, nocheck;
static double duration = 10, warmup = 1, maxconnect = 60;
static int connrate = 2000, inflight_max = 256, inflight;
static u64 stop_after, drop_every;
static int quiet;
static char *seqkey = "\"seq\":", *tskey = "\"t\":";
typedef struct {
  char name[64];
  int pids[16], npids;
  double cpu_first, cpu_open, cpu0, cpu1;
  long rss_first, rss0, rss1;
} watched;
static watched W[32];
static int nw;
// counters
static u64 ev, bytes, reads, gaps, dups, comments, errs, closed, bad_status, noid, reconn, wake;
static int counting;
static u64 tot_ev, open_ev;
static volatile int stopflag;
static void onsig(int s) {
  (void)s;
  stopflag = 1;
}
static u64 now_ns(clockid_t c) {
  struct timespec t;
  clock_gettime(c, &t);
  return (u64)t.tv_sec * 1000000000ull + t.tv_nsec;
}
// log-linear histogram in us: 64 sub-buckets per power of two
#define HB (64 * 40)
typedef struct {
  u64 b[HB], n, max, sum;
} hist;
static hist hlat, httfb, hfirst;
static int hidx(u64 v) {
  if (v < 64)
    return v;
  int e = 63 - __builtin_clzll(v);
  int i = (e - 5) * 64 + ((v >> (e - 6)) & 63);
  return i >= HB ? HB - 1 : i;
}
static u64 hval(int i) {
  if (i < 64)
    return i;
  int e = i / 64 + 5;
  return ((u64)(64 + (i & 63))) << (e - 6);
}
static void hadd(hist *h, u64 v) {
  h->b[hidx(v)]++;
  h->n++;
  h->sum += v;
  if (v > h->max)
    h->max = v;
}
static u64 hq(hist *h, double q) {
  u64 t = (u64)(q * h->n), a = 0;
  for (int i = 0; i < HB; i++) {
    a += h->b[i];
    if (a > t)
      return hval(i);
  }
  return h->max;
}
// CPU time in seconds of a process with all its threads, to the nanosecond; 0 if it is gone
static double cpu_of(int pid) {
  clockid_t clock;
  struct timespec t;
  if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &t))
    return 0;
  return t.tv_sec + t.tv_nsec / 1e9;
}
static long rss_kb(int pid) {
  char name[64];
  long pages = 0;
  snprintf(name, sizeof name, "/proc/%d/statm", pid);
  FILE *f = fopen(name, "r");
  if (!f)
    return 0;
  if (fscanf(f, "%*d %ld", &pages) != 1)
    pages = 0;
  fclose(f);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}
static void account(int when) { // 0: before the first connection, 1: the window begins, 2: it ends,
                                // 3: all connections are open
  for (int i = 0; i < nw; i++) {
    double cpu = 0;
    long rss = 0;
    for (int k = 0; k < W[i].npids; k++) {
      cpu += cpu_of(W[i].pids[k]);
      rss += rss_kb(W[i].pids[k]);
    }
    if (when == 0) {
      W[i].rss_first = rss;
      W[i].cpu_first = W[i].cpu_open = cpu;
    }
    if (when == 3)
      W[i].cpu_open = cpu;
    if (when == 1) {
      W[i].cpu0 = cpu;
      W[i].rss0 = rss;
    }
    if (when == 2) {
      W[i].cpu1 = cpu;
      W[i].rss1 = rss;
    }
  }
}
static void watch(const char *text) { // name=pid+pid
  watched *w = &W[nw];
  const char *eq = strchr(text, '=');
  if (nw == 32 || !eq || eq - text >= (int)sizeof w->name) {
    fprintf(stderr, "--watch %s\n", text);
    exit(2);
  }
  memcpy(w->name, text, eq - text);
  for (const char *p = eq + 1; *p && w->npids < 16; p += strcspn(p, "+"), p += *p == '+')
    w->pids[w->npids++] = atoi(p);
  nw++;
}
static void read_paths(const char *name) {
  FILE *f = fopen(name, "r");
  char text[1024];
  if (!f) {
    perror(name);
    exit(2);
  }
  while (fgets(text, sizeof text, f)) {
    text[strcspn(text, "\n")] = 0;
    if (!*text)
      continue;
    paths = realloc(paths, (npaths + 1) * sizeof *paths);
    paths[npaths++] = strdup(text);
  }
  fclose(f);
}
static void usage(void) {
  puts("sseload --url http://HOST:PORT --paths FILE [options]\n"
       "  --paths FILE         one path a line; connection i takes line i mod lines\n"
       "  --conns N            connections (1)\n"
       "  --duration S         measured window after warm-up (10)\n  --warmup S           after "
       "all connections are open (1)\n"
       "  --conn-rate R        new connections per second (2000)   --inflight N  concurrent "
       "handshakes (256)\n  --max-connect S      give up waiting for connections (60)\n"
       "  --header 'K: V'      repeatable\n"
       "  --method M --body S  e.g. POST with JSON body\n"
       "  --seq id|data|none   which number must be consecutive: the SSE id, or the number after "
       "--seq-key in data (id)\n"
       "  --seq-key K          default \"seq\":    --ts-key K  publisher time, ns since epoch, "
       "default \"t\":\n"
       "  --fresh              the window begins with the first connection; latency of events sent "
       "after their client's request only\n"
       "  --stop-after N       each connection closes after N events; exits when all are done "
       "(replay test)\n"
       "  --drop-every N       each connection is closed after N events and re-opened with "
       "Last-Event-ID (resume test)\n"
       "  --watch name=a+b     CPU and memory of these processes over the window; repeatable\n"
       "Prints {\"connected\":n} once all connections are open, and a JSON object at the end. Exit "
       "0; 3 if there were gaps, duplicates or errors.");
  exit(2);
}
static void arm(conn *c, uint32_t e) {
  struct epoll_event x = {.events = e, .data.ptr = c};
  epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &x);
}
static void finish(conn *c, int err) {
  if (c->fd >= 0) {
    close(c->fd);
    c->fd = -1;
  }
  if (c->st == ST_CONNECTING || c->st == ST_HEADERS)
    inflight--;
  if (c->st == ST_BODY)
    established--;
  c->st = ST_DONE;
  doneconns++;
  if (err)
    errs++;
}
static void start(conn *c) {
  c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (c->fd < 0) {
    perror("socket");
    exit(1);
  }
  int one = 1;
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  c->st = ST_CONNECTING;
  c->ch = CH_NONE;
  c->nleft = 0;
  c->hasdata = c->havecurid = c->havedseq = c->havedts = 0;
  c->nev_conn = 0;
  inflight++;
  c->t_req = now_ns(CLOCK_MONOTONIC);
  c->req_ns = now_ns(CLOCK_REALTIME);
  if (connect(c->fd, (void *)&addr, sizeof addr) < 0 && errno != EINPROGRESS) {
    finish(c, 1);
    return;
  }
  struct epoll_event x = {.events = EPOLLOUT, .data.ptr = c};
  epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &x);
}
static void sendreq(conn *c) {
  const char *path = paths[c->idx % npaths];
  char req[16384];
  size_t bl = strlen(body);
  int n =
      snprintf(req, sizeof req, "%s %s HTTP/1.1\r\nHost: %s:%d\r\nAccept: text/event-stream\r\n%s",
               method, path, host, port, hdrs);
  const char *l = c->lastid[0] ? c->lastid : NULL;
  if (l)
    n += snprintf(req + n, sizeof req - n, "Last-Event-ID: %s\r\n", l);
  if (bl)
    n += snprintf(req + n, sizeof req - n, "Content-Length: %zu\r\n", bl);
  n += snprintf(req + n, sizeof req - n, "\r\n%s", body);
  if (write(c->fd, req, n) != n) {
    finish(c, 1);
    return;
  }
  c->st = ST_HEADERS;
  arm(c, EPOLLIN);
}
static i64 num(const char *p, const char *e, int *ok) {
  i64 v = 0;
  *ok = 0;
  while (p < e && *p == ' ')
    p++;
  while (p < e && isdigit((unsigned char)*p)) {
    v = v * 10 + (*p++ - '0');
    *ok = 1;
  }
  return v;
}
static u64 rt_now;
// returns 1 if the connection was closed by us
static int dispatch(conn *c) {
  if (!c->hasdata) {
    c->havecurid = c->havedseq = c->havedts = 0;
    return 0;
  }
  c->hasdata = 0;
  c->nev++;
  c->nev_conn++;
  tot_ev++;
  if (counting)
    ev++;
  if (!c->got_first) {
    c->got_first = 1;
    hadd(&hfirst, (now_ns(CLOCK_MONOTONIC) - c->t_req) / 1000);
  }
  if (c->havedts && counting && (!fresh || c->dts >= c->req_ns)) {
    i64 d = (i64)rt_now - c->dts;
    hadd(&hlat, d > 0 ? d / 1000 : 0);
  }
  if (!nocheck) {
    int have = seqdata ? c->havedseq : c->havecurid;
    i64 s = seqdata ? c->dseq : c->curid;
    if (!have)
      noid++;
    else {
      if (c->haveseq) {
        if (s > c->lastseq + 1)
          gaps += s - c->lastseq - 1;
        else if (s <= c->lastseq)
          dups++;
      }
      c->haveseq = 1;
      if (s > c->lastseq)
        c->lastseq = s;
    }
  }
  c->havecurid = c->havedseq = c->havedts = 0;
  if (stop_after && c->nev >= stop_after) {
    finish(c, 0);
    return 1;
  }
  if (drop_every && c->nev_conn >= drop_every && !stopflag) {
    close(c->fd);
    c->fd = -1;
    established--;
    c->st = ST_IDLE;
    c->reconnects++;
    reconn++;
    start(c);
    return 1;
  }
  return 0;
}
static int line(conn *c, char *p, char *e) { // [p,e) without line end
  if (e > p && e[-1] == '\r')
    e--;
  if (p == e)
    return dispatch(c);
  if (*p == ':') {
    if (counting)
      comments++;
    return 0;
  }
  if (e - p >= 5 && !memcmp(p, "data:", 5)) {
    c->hasdata = 1;
    char *q;
    int ok;
    size_t m = e - p;
    size_t w = m > 256 ? 256 : m; // keys are looked for in the first 256 bytes, then the last 256
    if (seqdata) {
      if (!(q = memmem(p, w, seqkey, strlen(seqkey))) && m > 256)
        q = memmem(e - 256, 256, seqkey, strlen(seqkey));
      if (q) {
        c->dseq = num(q + strlen(seqkey), e, &ok);
        c->havedseq = ok;
      }
    }
    if (!(q = memmem(p, w, tskey, strlen(tskey))) && m > 256)
      q = memmem(e - 256, 256, tskey, strlen(tskey));
    if (q) {
      c->dts = num(q + strlen(tskey), e, &ok);
      c->havedts = ok;
    }
  } else if (e - p >= 3 && !memcmp(p, "id:", 3)) {
    int ok;
    c->curid = num(p + 3, e, &ok);
    c->havecurid = ok;
    if (drop_every) {
      char *s = p + 3;
      while (s < e && *s == ' ')
        s++;
      size_t l = e - s;
      if (l < sizeof c->lastid) {
        memcpy(c->lastid, s, l);
        c->lastid[l] = 0;
      }
    }
  }
  return 0;
}
static char *B;
static const size_t BS = 1 << 20;
static void save(conn *c, char *p, size_t n) {
  if (n > c->capleft) {
    c->capleft = n < 512 ? 512 : n * 2;
    free(c->left);
    c->left = malloc(c->capleft);
  }
  memcpy(c->left, p, n);
  c->nleft = n;
}
static void onread(conn *c) {
  for (int loop = 0; loop < 4; loop++) {
    size_t off = c->nleft;
    if (off)
      memcpy(B, c->left, off);
    c->nleft = 0;
    ssize_t n = read(c->fd, B + off, BS - off - 1);
    reads++;
    if (n < 0) {
      if (off)
        save(c, B, off);
      if (errno == EAGAIN)
        return;
      finish(c, 1);
      return;
    }
    if (n == 0) {
      closed++;
      finish(c, 0);
      return;
    }
    if (counting)
      bytes += n;
    char *p = B + off, *end = B + off + n, *w; // fresh bytes [p,end); line bytes so far [B,p)
    if (c->st == ST_HEADERS) {
      *end = 0;
      char *h = memmem(B, end - B, "\r\n\r\n", 4);
      if (!h) {
        save(c, B, end - B);
        if ((size_t)n < BS / 2)
          return;
        continue;
      }
      h[2] = 0;
      int status = 0;
      sscanf(B, "HTTP/1.%*d %d", &status);
      if (status != 200) {
        bad_status++;
        if (!quiet)
          fprintf(stderr, "%.300s\n", B);
        quiet = 1;
        finish(c, 1);
        return;
      }
      if (strcasestr(B, "transfer-encoding: chunked")) {
        c->ch = CH_SIZE;
        c->chrem = 0;
        c->chdig = 0;
      }
      hadd(&httfb, (now_ns(CLOCK_MONOTONIC) - c->t_req) / 1000);
      c->st = ST_BODY;
      inflight--;
      established++;
      connected++;
      p = h + 4;
      memmove(B, p, end - p);
      end = B + (end - p);
      p = B;
    }
    w = p;
    int fin = 0;
    if (c->ch == CH_NONE)
      w = end;
    else
      while (p < end) { // decode chunks in place
        if (c->ch == CH_SIZE) {
          char ch = *p++;
          if (isxdigit((unsigned char)ch) && c->chdig >= 0) {
            c->chrem =
                c->chrem * 16 + (isdigit((unsigned char)ch) ? ch - '0' : (ch | 32) - 'a' + 10);
            c->chdig = 1;
          } else if (ch == ';')
            c->chdig = -1;
          else if (ch == '\n') {
            c->ch = c->chrem ? CH_DATA : CH_TRAILER;
            c->chdig = 0;
            if (c->ch == CH_TRAILER) {
              fin = 1;
              break;
            }
          }
        } else if (c->ch == CH_DATA) {
          size_t k = end - p;
          if (k > c->chrem)
            k = c->chrem;
          if (w != p)
            memmove(w, p, k);
          w += k;
          p += k;
          c->chrem -= k;
          if (!c->chrem)
            c->ch = CH_CRLF;
        } else {
          if (*p++ == '\n')
            c->ch = CH_SIZE;
        }
      }
    rt_now = now_ns(CLOCK_REALTIME);
    char *s = B;
    while (s < w) {
      char *e = memchr(s, '\n', w - s);
      if (!e)
        break;
      if (line(c, s, e))
        return;
      s = e + 1;
    }
    if (fin) {
      closed++;
      finish(c, 0);
      return;
    }
    if (w > s)
      save(c, s, w - s);
    if ((size_t)n < BS - off - 1)
      return;
  }
}
int main(int argc, char **argv) {
  static struct option lo[] = {{"url", 1, 0, 'u'},        {"conns", 1, 0, 'c'},
                               {"paths", 1, 0, 'p'},      {"duration", 1, 0, 'd'},
                               {"warmup", 1, 0, 'w'},     {"conn-rate", 1, 0, 'R'},
                               {"inflight", 1, 0, 'f'},   {"max-connect", 1, 0, 'M'},
                               {"header", 1, 0, 'H'},     {"method", 1, 0, 'm'},
                               {"body", 1, 0, 'b'},       {"seq", 1, 0, 's'},
                               {"seq-key", 1, 0, 'k'},    {"ts-key", 1, 0, 't'},
                               {"fresh", 0, 0, 'F'},      {"stop-after", 1, 0, 'S'},
                               {"drop-every", 1, 0, 'D'}, {"watch", 1, 0, 'W'},
                               {"help", 0, 0, 'h'},       {0}};
  int o;
  char *url = NULL;
  while ((o = getopt_long(argc, argv, "h", lo, NULL)) != -1)
    switch (o) {
    case 'u':
      url = optarg;
      break;
    case 'c':
      N = atoi(optarg);
      break;
    case 'p':
      read_paths(optarg);
      break;
    case 'd':
      duration = atof(optarg);
      break;
    case 'w':
      warmup = atof(optarg);
      break;
    case 'R':
      connrate = atoi(optarg);
      break;
    case 'f':
      inflight_max = atoi(optarg);
      break;
    case 'M':
      maxconnect = atof(optarg);
      break;
    case 'H':
      if (strlen(hdrs) + strlen(optarg) + 3 > sizeof hdrs)
        usage();
      strcat(hdrs, optarg);
      strcat(hdrs, "\r\n");
      break;
    case 'm':
      method = optarg;
      break;
    case 'b':
      body = optarg;
      break;
    case 's':
      seqdata = !strcmp(optarg, "data");
      nocheck = !strcmp(optarg, "none");
      break;
    case 'k':
      seqkey = optarg;
      break;
    case 't':
      tskey = optarg;
      break;
    case 'F':
      fresh = 1;
      break;
    case 'S':
      stop_after = atoll(optarg);
      break;
    case 'D':
      drop_every = atoll(optarg);
      break;
    case 'W':
      watch(optarg);
      break;
    default:
      usage();
    }
  if (!url || N < 1 || !npaths)
    usage();
  const char *u = url;
  if (!strncmp(u, "http://", 7))
    u += 7;
  sscanf(u, "%255[^:/]:%d", host, &port);
  struct hostent *he = gethostbyname(host);
  if (!he) {
    fprintf(stderr, "cannot resolve %s\n", host);
    return 1;
  }
  addr.sin_family = AF_INET;
  addr.sin_port = htons(port);
  memcpy(&addr.sin_addr, he->h_addr_list[0], 4);
  struct rlimit rl;
  getrlimit(RLIMIT_NOFILE, &rl);
  rl.rlim_cur = rl.rlim_max;
  setrlimit(RLIMIT_NOFILE, &rl);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGINT, onsig);
  signal(SIGTERM, onsig);
  B = malloc(BS);
  C = calloc(N, sizeof *C);
  for (int i = 0; i < N; i++) {
    C[i].fd = -1;
    C[i].idx = i;
  }
  ep = epoll_create1(0);
  static struct epoll_event evs[1024];
  u64 t0 = now_ns(CLOCK_MONOTONIC), tall = 0, tw = 0, tend = 0;
  int next = 0;
  struct rusage r0, r1;
  getrusage(RUSAGE_SELF, &r0);
  account(0);
  if (stop_after || fresh) {
    counting = 1;
    tw = t0;
    account(1);
  }
  while (!stopflag) {
    u64 t = now_ns(CLOCK_MONOTONIC);
    double el = (t - t0) / 1e9;
    while (next < N && inflight < inflight_max && next < el * connrate + 1)
      start(&C[next++]);
    if (!tall && ((next == N && inflight == 0) || el > maxconnect)) {
      if (connected < N)
        fprintf(stderr, "only %d of %d connected in %.0f s\n", connected, N, el);
      tall = t;
      open_ev = tot_ev;
      account(3);
      printf("{\"connected\":%d}\n", connected);
      fflush(stdout);
    }
    if (tall && !tw && (t - tall) / 1e9 >= warmup) {
      counting = 1;
      tw = t;
      account(1);
      getrusage(RUSAGE_SELF, &r0);
    }
    u64 from = fresh ? tall : tw; // a fresh window lasts so long after all connections are open
    if (from && !stop_after && t > from && (t - from) / 1e9 >= duration)
      break;
    if (stop_after && (t - t0) / 1e9 >= maxconnect)
      break;
    if (next == N && doneconns == N)
      break;
    int n = epoll_wait(ep, evs, 1024, next < N ? 1 : 20);
    wake++;
    for (int i = 0; i < n; i++) {
      conn *c = evs[i].data.ptr;
      if (c->st == ST_DONE)
        continue;
      if (c->st == ST_CONNECTING) {
        int er = 0;
        socklen_t l = sizeof er;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &er, &l);
        if (er) {
          if (!quiet)
            fprintf(stderr, "connect: %s\n", strerror(er));
          quiet = 1;
          finish(c, 1);
        } else
          sendreq(c);
      } else
        onread(c);
    }
  }
  tend = now_ns(CLOCK_MONOTONIC);
  account(2);
  getrusage(RUSAGE_SELF, &r1);
  double win = tw ? (tend - tw) / 1e9 : 0;
  double me = (r1.ru_utime.tv_sec - r0.ru_utime.tv_sec) +
              (r1.ru_utime.tv_usec - r0.ru_utime.tv_usec) / 1e6 +
              (r1.ru_stime.tv_sec - r0.ru_stime.tv_sec) +
              (r1.ru_stime.tv_usec - r0.ru_stime.tv_usec) / 1e6;
  u64 mn = ~0ull, mx = 0;
  int zero = 0;
  for (int i = 0; i < N; i++) {
    if (C[i].nev < mn)
      mn = C[i].nev;
    if (C[i].nev > mx)
      mx = C[i].nev;
    zero += !C[i].nev;
  }
  printf(
      "{\"conns\":%d,\"connected\":%d,\"established\":%d,\"window_s\":%.3f,\"connect_s\":%.3f,"
      "\"connect_events\":%llu,\"events\":%llu,\"events_per_s\":%.1f,\"bytes\":%llu,\"comments\":%"
      "llu,\"gaps\":%llu,\"dups\":%llu,\"no_id\":%llu,\"errors\":%llu,\"closed_by_server\":%llu,"
      "\"bad_status\":%llu,\"reconnects\":%llu,"
      "\"conn_events_min\":%llu,\"conn_events_max\":%llu,\"conns_without_event\":%d,\"lat_us\":{"
      "\"n\":%llu,\"p50\":%llu,\"p99\":%llu,\"p999\":%llu,\"max\":%llu},\"ttfb_us\":{\"p50\":%llu,"
      "\"p99\":%llu,\"max\":%llu},\"first_event_us\":{\"p50\":%llu,\"p99\":%llu,\"max\":%llu},"
      "\"loadgen\":{\"cpu_s\":%.3f,\"events_per_read\":%.2f},\"watched\":{",
      N, connected, established, win, tall ? (tall - t0) / 1e9 : -1.0, (unsigned long long)open_ev,
      (unsigned long long)ev, win ? ev / win : 0, (unsigned long long)bytes,
      (unsigned long long)comments, (unsigned long long)gaps, (unsigned long long)dups,
      (unsigned long long)noid, (unsigned long long)errs, (unsigned long long)closed,
      (unsigned long long)bad_status, (unsigned long long)reconn, (unsigned long long)mn,
      (unsigned long long)mx, zero, (unsigned long long)hlat.n, (unsigned long long)hq(&hlat, .5),
      (unsigned long long)hq(&hlat, .99), (unsigned long long)hq(&hlat, .999),
      (unsigned long long)hlat.max, (unsigned long long)hq(&httfb, .5),
      (unsigned long long)hq(&httfb, .99), (unsigned long long)httfb.max,
      (unsigned long long)hq(&hfirst, .5), (unsigned long long)hq(&hfirst, .99),
      (unsigned long long)hfirst.max, me, reads ? (double)tot_ev / reads : 0);
  for (int i = 0; i < nw; i++)
    printf("%s\"%s\":{\"cpu_s\":%.6f,\"connect_cpu_s\":%.6f,\"rss_kb_first\":%ld,\"rss_kb_before\":"
           "%ld,\"rss_kb_after\":%ld}",
           i ? "," : "", W[i].name, W[i].cpu1 - W[i].cpu0, W[i].cpu_open - W[i].cpu_first,
           W[i].rss_first, W[i].rss0, W[i].rss1);
  printf("}}\n");
  return (gaps || dups || errs || bad_status || connected < N) ? 3 : 0;
}
