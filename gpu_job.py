import random, sys, time, torch
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.limits import Limits
from headway.core.generation.sampling import Sampling
from headway.core.generation.sequence import Sequence
from headway.core.generation.step import Step
from headway.engine.gpu.decoder import GpuDecoder
from headway.engine.gpu.runner import GpuRunner
CFG={"1B":dict(hidden_size=2048,intermediate_size=8192,num_hidden_layers=16,num_attention_heads=32,num_key_value_heads=8,head_dim=64,vocab_size=128256,tie_word_embeddings=True),
     "8B":dict(hidden_size=4096,intermediate_size=14336,num_hidden_layers=32,num_attention_heads=32,num_key_value_heads=8,head_dim=128,vocab_size=128256,tie_word_embeddings=False)}
TARGET={"1B":(25000,36000),"8B":(6900,10000)}
def weights(c,dev="cuda",dt=torch.bfloat16):
    h,i=c["hidden_size"],c["intermediate_size"]; q=c["num_attention_heads"]*c["head_dim"]; k=c["num_key_value_heads"]*c["head_dim"]
    r=lambda *s: torch.randn(*s,device=dev,dtype=dt)*.02
    o=lambda n: torch.ones(n,device=dev,dtype=dt)
    yield "model.embed_tokens.weight", r(c["vocab_size"],h)
    yield "model.norm.weight", o(h)
    if not c["tie_word_embeddings"]: yield "lm_head.weight", r(c["vocab_size"],h)
    for n in range(c["num_hidden_layers"]):
        p=f"model.layers.{n}."
        yield p+"input_layernorm.weight",o(h); yield p+"post_attention_layernorm.weight",o(h)
        yield p+"self_attn.q_proj.weight",r(q,h); yield p+"self_attn.k_proj.weight",r(k,h); yield p+"self_attn.v_proj.weight",r(k,h); yield p+"self_attn.o_proj.weight",r(h,q)
        yield p+"mlp.gate_proj.weight",r(i,h); yield p+"mlp.up_proj.weight",r(i,h); yield p+"mlp.down_proj.weight",r(h,i)
def rnd(n,V=128000): return [random.randrange(10,V) for _ in range(n)]
def mixed(seed=0,n=256,lo=32,hi=512,mx=128):
    random.seed(seed); return [rnd(random.randint(lo,hi)) for _ in range(n)],[random.randint(8,mx) for _ in range(n)]
def nano(seed=0):
    random.seed(seed); p=[[random.randint(0,10000) for _ in range(random.randint(100,1024))] for _ in range(256)]
    return p,[random.randint(100,1024) for _ in range(256)]
PAGE=32; BASE=[0]
def job(runner,limits,prompts,outs,sampling=Sampling(temperature=0.0)):
    sch=GenerationScheduler(limits); t=time.perf_counter(); texts={}
    BASE[0]+=1000
    for i,(p,o) in enumerate(zip(prompts,outs)):
        i+=BASE[0]; sch.submit(Sequence(i,0.0,tuple(p),o)); runner.add(i,tuple(p),sampling)
    flight=[]; n=0; steps=0; busy=0.0; ms=0; host=0.0
    while True:
        a=time.perf_counter(); st=sch.next_step(a); b=time.perf_counter(); busy+=b-a
        if isinstance(st,Step):
            if st.has_work:
                steps+=1; ms+=bool(st.prefill); flight.append(runner.start(st)); host+=time.perf_counter()-b
            if len(flight)<2: continue
        if not flight: break
        r=flight.pop(0); toks=r.result().tokens; n+=len(toks)
        for s,tk in zip(r.step.sampled,toks): texts.setdefault(s,[]).append(tk)
        a=time.perf_counter()
        for f in sch.complete(r.step,toks): runner.drop(f.sequence)
        busy+=time.perf_counter()-a
    return n,time.perf_counter()-t,steps,ms,busy,host,texts
def run(name):
    c=CFG[name]; m=GpuDecoder(c,weights(c),dtype=torch.bfloat16,device="cuda",max_context=2304)
    for st_tokens in (8192,4096):
        lim=Limits(blocks=20000 if name=="1B" else 14000,block_size=PAGE,max_context=2304,max_sequences=256,step_tokens=st_tokens,max_stretch=1000.0)
        r=GpuRunner(m,lim); a=time.perf_counter(); r.warm_up(); torch.cuda.synchronize(); print(name,"captured in",round(time.perf_counter()-a,1),"s",flush=True)
        job(r,lim,*mixed(9,64))
        for k in range(3):
            n,dt,steps,ms,busy,host,_=job(r,lim,*mixed(k)); print(f"{name} step_tokens {st_tokens} mixed job: {n/dt:,.0f} tok/s (asked {TARGET[name][0]:,}); {steps} steps, {ms} with prompts, {dt:.2f} s, scheduler {busy:.2f} s, host {host:.2f} s",flush=True)
        n,dt,steps,ms,busy,host,_=job(r,lim,*nano()); print(f"{name} step_tokens {st_tokens} nano job: {n/dt:,.0f} tok/s (asked {TARGET[name][1]:,}); {steps} steps, {ms} with prompts, {dt:.2f} s, scheduler {busy:.2f} s, host {host:.2f} s",flush=True)
        del r; torch.cuda.empty_cache()
def right():
    """A small random model in fp32: greedy texts in company against transformers, alone."""
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0); cfg=LlamaConfig(hidden_size=256,intermediate_size=512,num_hidden_layers=2,num_attention_heads=8,num_key_value_heads=2,head_dim=32,vocab_size=1000,max_position_embeddings=1024,tie_word_embeddings=False,initializer_range=.3)
    hf=LlamaForCausalLM(cfg).float().cuda().eval()
    m=GpuDecoder(cfg.to_dict(),iter(hf.state_dict().items()),dtype=torch.float32,device="cuda",max_context=600)
    for chunk in (64,512):
        lim=Limits(blocks=120,block_size=16,max_context=600,max_sequences=16,step_tokens=chunk,max_stretch=1000.0)
        r=GpuRunner(m,lim); r.warm_up(); random.seed(3)
        ps=[[random.randrange(1,1000) for _ in range(random.choice((3,40,200)))] for _ in range(24)]; os_=[random.randint(5,60) for _ in ps]
        *_,texts=job(r,lim,ps,os_); same=0; tot=0; worst=0.0
        for i,(p,o) in enumerate(zip(ps,os_)):
            t=texts[BASE[0]+i]; assert len(t)==o
            lg=hf(torch.tensor([p+t],device="cuda")).logits[0,len(p)-1:-1]
            gap=(lg.max(-1).values-lg.gather(1,torch.tensor(t,device="cuda")[:,None])[:,0]); worst=max(worst,gap.max().item()); same+=(gap==0).sum().item(); tot+=o
        print(f"fp32, chunks of {chunk}: {same} of {tot} tokens are transformers' argmax, largest gap {worst:.1e}",flush=True)
        a=job(r,lim,ps,os_,Sampling(temperature=.8,seed=5))[-1]; b0=BASE[0]; ref={i-b0:t for i,t in a.items()}
        one=job(r,lim,ps[:1],os_[:1],Sampling(temperature=.8,seed=5))[-1]; print("tempered, alone and in company equal:", list(one.values())[0]==ref[0])
        one=job(r,lim,ps[:2],os_[:2],Sampling(temperature=.8,seed=5,top_p=.9,logprobs=2))[-1]; two=job(r,lim,ps,os_,Sampling(temperature=.8,seed=5,top_p=.9,logprobs=2))[-1]; print("top-p on the host, equal:", list(one.values())[0]==two[BASE[0]])
for n in sys.argv[1:]:
    right() if n=="right" else run(n); torch.cuda.empty_cache()
