// Calls the library once, and keeps what it gets.
void *entry(void);
void *volatile kept;
int main(void) { kept = entry(); return kept == 0; }
